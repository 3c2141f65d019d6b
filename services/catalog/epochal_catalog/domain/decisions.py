"""What a request changes, and what watchers are told of it.

Apart from the rules because all of them end in one of these: every change gets a revision here, and with it its place
in the history (S26).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from epochal_catalog.domain.numbering import following
from epochal_catalog.domain.records import (
    Change,
    ChangeRecord,
    ChangesForgotten,
    CounterRecord,
    Json,
    LivenessNoticed,
    RegistrationRecord,
    RegistrationRemoved,
    SegmentRecord,
    SessionRecord,
    StreamRecord,
    StreamRemoved,
    SubscriptionRecord,
    SubscriptionRemoved,
    fields_of,
)
from epochal_catalog.domain.state import FLOOR, CatalogState

A = TypeVar("A")
_Told = tuple[str, str, dict[str, Json] | None]
"""Kind, name, and what it is now; None: it is gone."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """What a request changes, in one transaction, and its answer, read once the state has the changes."""

    changes: tuple[Change, ...]
    answer: Callable[[], A]


def write(state: CatalogState, floor: int, answer: Callable[[], A], *changes: Change) -> Decision[A]:
    """A decision that is stored: each change that can be seen from outside is the next revision, none below `floor`.

    What is kept in memory only, or shown to no one, makes none by itself: every revision that was given out is that of
    a change, so one that is of another past is known by that (S26).
    """
    told = list(_tell(state, changes))
    if not told:
        return Decision(changes, answer)
    first = following(state.revision, floor)
    numbered: list[Change] = [
        ChangeRecord(first + index, kind, "delete" if value is None else "put", name, value)
        for index, (kind, name, value) in enumerate(told)
    ]
    excess = state.history.excess(len(told))
    if excess is not None:
        numbered += [ChangesForgotten(excess), CounterRecord(FLOOR, excess - 1)]
    elif state.counter(FLOOR) is None:
        numbered.append(CounterRecord(FLOOR, state.history.floor))
    revision = CounterRecord("revision", first + len(told) - 1)
    return Decision((revision, *changes, *numbered), answer)


def _tell(state: CatalogState, changes: Sequence[Change]) -> Iterator[_Told]:
    names = {change.uid: f"{change.namespace}/{change.name}" for change in changes if isinstance(change, StreamRecord)}
    for change in changes:
        match change:
            case StreamRecord(uid=uid):
                yield "stream", names[uid], fields_of(change)
            case SegmentRecord(uid=uid, id=segment):
                name = names.get(uid) or state.name_of(uid)
                shown = {**fields_of(change), "lo": str(change.lo), "hi": str(change.hi), "stream": name}
                for hidden in ("finishing_number", "horizon", "record_number", "marks"):
                    del shown[hidden]
                yield "segment", f"{name}/{segment}", shown
            case SessionRecord(uid=uid, writer=writer):
                name = state.name_of(uid)
                yield "session", f"{name}/{writer}", {**fields_of(change), "stream": name}
            case RegistrationRecord(publisher=publisher):
                yield "publisher", publisher, {**fields_of(change), "live": True}
            case LivenessNoticed(token, live):
                known = state.registration(token)
                if known is not None:
                    yield "publisher", known.publisher, {**fields_of(known), "live": live}
            case SubscriptionRecord(id=key, uid=uid, subscriber=subscriber, since=since):
                shown = {"id": key, "stream": state.name_of(uid), "uid": uid, "subscriber": subscriber, "since": since}
                yield "subscription", key, shown  # never its token: that is its owner's (S29)
            case StreamRemoved(uid):
                yield "stream", state.name_of(uid), None
            case RegistrationRemoved(publisher, token):
                if state.registration(token) is not None:
                    yield "publisher", publisher, None
            case SubscriptionRemoved(key):
                yield "subscription", key, None
