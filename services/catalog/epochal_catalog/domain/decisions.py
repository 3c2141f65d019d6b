"""What a request changes, and the numbers that it is given.

All rules return a `Decision`, which names what it read (`reads`). When it is written, every change gets its revision
here, and with it its place in the history (S26). Each number that a catalog gives out is greater than all before it,
and none is below the clock (E12 fencing). So no number is given out twice, even when the database is restored from an
older copy: the numbers that the copy does not know were given out earlier, so they are below the clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from epochal_catalog.domain.kind import Json, Noticed, Record, Removed
from epochal_catalog.domain.reads import Reads
from epochal_catalog.domain.records import ChangeRecord, ChangesForgotten, CounterRecord, InMemory, StateChange
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.state import FLOOR, CatalogState
from epochal_catalog.domain.stream_entries import StreamRecord

A = TypeVar("A")
_AT_ONCE = 1000
"""The most withdrawals, and the most notices of leases, in one transaction: other writes get their turn between."""
_Event = tuple[str, str, dict[str, Json] | None]
"""Kind, name, and the new value; None: it was deleted."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """What a request changes, in one transaction, and its answer, made after the state has the changes.

    It holds while the state has the same versions of all that it read (`CatalogState.holds`); after that it must be
    made again. One of which nothing is stored names nothing: it is taken over at once.
    """

    changes: tuple[StateChange, ...]
    answer: Callable[[], A]
    reads: Reads = field(default_factory=dict)

    @property
    def stored(self) -> bool:
        """Whether anything of it goes to disk."""
        return not all(isinstance(change, InMemory) for change in self.changes)


class Rules:
    """What rules decide on: the state, and the least number that may be given out now (E12 fencing).

    Rules read the state, raise a typed error or return a `Decision`, and change nothing. The caller first writes a
    decision's changes to disk, and then the state takes them over: memory is never ahead of what survives a crash.
    """

    def __init__(self, state: CatalogState, floor: int = 0) -> None:
        self.state = state
        self.floor = floor

    def decide(self, rule: "Callable[[Rules], Decision[A]]") -> Decision[A]:
        """What a rule decides now, with what it read. Raises what the rule raises."""
        decision, keys = self.state.reading.during(rule, self)
        if not decision.stored:
            return decision
        return Decision(decision.changes, decision.answer, self.state.versions_of(keys))

    def write(self, answer: Callable[[], A], *changes: StateChange) -> Decision[A]:
        """A decision that stores these changes."""
        return Decision(changes, answer)

    def tidy(self, seconds: float, now: float) -> Decision[None] | None:
        """What changes because time has passed; None: nothing now.

        Entries whose lease has lapsed, such as subscriptions (S30), are withdrawn. Registrations that are not current
        and whose lease lapsed `seconds` ago are dropped; until then their publishers get an error that says why they
        must stop. Watchers are notified of leases that lapsed or came back.
        """
        changes: list[StateChange] = []
        for kind in self.state.kinds.values():
            changes += self.state[kind].notices()[:_AT_ONCE]
            changes += [kind.removed(record) for record in islice(self.state[kind].lapsed(), _AT_ONCE)]
        # not among `lapsed` of their kind: whether a registration is current is seen at its stream's segments
        changes += [
            PUBLISHERS.removed(record)
            for record in self.state[PUBLISHERS]
            if not self.state.current(record) and self.state.leases.lapsed_for(record.token, seconds, now)
        ]
        return self.write(lambda: None, *changes) if changes else None


def numbered(state: CatalogState, floor: int, changes: Sequence[StateChange]) -> tuple[StateChange, ...]:
    """The changes as they are written: each that watchers can see gets the next revision, none below `floor`.

    Changes that are kept in memory only, or shown to no one, get no revision. So every revision that was given out is
    that of a change, and one that belongs to no change must come from another database (S26).
    """
    events = list(_events(state, changes))
    if not events:
        return tuple(changes)
    first = following(state.revision, floor)
    history: list[StateChange] = [
        ChangeRecord(first + index, kind, "delete" if value is None else "put", name, value)
        for index, (kind, name, value) in enumerate(events)
    ]
    excess = state.history.excess(len(events))
    if excess is not None:
        history += [ChangesForgotten(excess), CounterRecord(FLOOR, excess - 1)]
    elif state.counter(FLOOR) is None:  # stored with the first change, so that a restart reads it and does not guess
        history.append(CounterRecord(FLOOR, state.history.floor))
    revision = CounterRecord("revision", first + len(events) - 1)
    return (revision, *changes, *history)


def _events(state: CatalogState, changes: Sequence[StateChange]) -> Iterator[_Event]:
    fresh = {change.uid: change.qualified for change in changes if isinstance(change, StreamRecord)}

    def names(uid: str) -> str:
        return fresh.get(uid) or state.name_of(uid)

    for change in changes:
        match change:
            case Noticed(kind, record, differs):
                name, shown = kind.event(record, names)
                yield kind.name, name, {**shown, **differs}
            case Removed(kind, record):
                yield kind.name, kind.event(record, names)[0], None
            case Record() if type(change) in state.kinds:  # counters and changes are of no kind
                kind = state.kinds[type(change)]
                yield kind.name, *kind.event(change, names)


ROOM_BITS = 10
"""A millisecond has room for 1,024 numbers; more than that run ahead of the clock."""
_HIGHEST = (1 << 53) - (1 << 40)
"""Every JSON reader keeps 53 bits. From the year 2248 on, the clock no longer raises this minimum."""


def least(seconds: float) -> int:
    """The least number that may be given out at `seconds` since 1970, UTC.

    >>> least(0.0), least(1.5)
    (0, 1536000)
    """
    return min(max(int(seconds * 1000), 0) << ROOM_BITS, _HIGHEST)


def following(last: int, floor: int) -> int:
    """The next number after `last`, not below `floor`. It rises even when the clock was set back.

    >>> following(7, 0), following(7, 100), following(100, 7)
    (8, 100, 101)
    """
    return max(last + 1, floor)
