"""How far a subscriber has come: small, serialisable, and enough to resume on another machine.

Applications store cursors, so their form outlives any process.

Sources: rules E16, F9; Push-Pull Publish-Subscribe ("subscribers only need to keep a time stamp").
"""

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from epochal.errors import CursorError, TimeShapeError
from epochal.protocol.messages import NOTHING_YET, Position
from epochal.protocol.times import MAX_TIME, Time, from_json, to_json
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

T = TypeVar("T")

_FORM = 5
"""The form that is written and read. Forms 1 to 4 are from before 0.1.0."""

MAX_TOPICS = 4096
"""Bytes of a filter that a cursor carries; of a larger one it carries a digest (F9).

Also of all filters in `new_topics`; above that, changes are taken together.
"""


class NewTopics(NamedTuple):
    """Topics that were not wanted at first: all wanted ones but those that are `kept`.

    They are whole in the epochs that `whole_from` reaches, and left out of all others. None if a segment had not
    reported yet where they begin (F8).
    """

    kept: TopicFilter
    whole_from: tuple[Time, ...] | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """`stream` is the stream's uid.

    `positions` are just before the first event of any epoch not yet yielded; events that no element of `frontier`
    reaches, and those of `aborted` epochs, are skipped on resume. `unreported_aborts` (in JSON `untold`) are aborted,
    too, and the application does not know that yet; the log may begin after their aborts. Of the epochs that `frontier`
    reaches, only those that `seen_from` reaches can be handed out (None: all). The subscriber missed a part of the
    others (E15), but segments may still accept records at them, so they are not complete. `topics` are wanted (None:
    all), as a digest where they are too much for a cursor. `new_topics` says which of them are not whole in every epoch
    that can still come, and in which epochs they are (F9).
    """

    stream: str
    positions: Mapping[str, Position]
    frontier: tuple[Time, ...]
    aborted: tuple[Time, ...] = ()
    unreported_aborts: tuple[Time, ...] = ()
    seen_from: tuple[Time, ...] | None = None
    topics: TopicFilter | str | None = None
    new_topics: tuple[NewTopics, ...] = ()

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back, on this machine or another."""
        value: dict[str, Any] = {
            "cursor": _FORM,
            "stream": self.stream,
            "positions": {segment: list(position) for segment, position in sorted(self.positions.items())},
            "frontier": [to_json(time) for time in self.frontier],
            "aborted": [to_json(time) for time in self.aborted],
            "untold": [to_json(time) for time in self.unreported_aborts],
            "seen_from": None if self.seen_from is None else [to_json(time) for time in self.seen_from],
            "topics": _in_hex(self.topics) if isinstance(self.topics, TopicFilter) else self.topics,
            "new_topics": [
                [_in_hex(new.kept), None if new.whole_from is None else [to_json(time) for time in new.whole_from]]
                for new in self.new_topics
            ],
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        """Read a cursor.

        Raises `CursorError`, which names the field that is wrong and says what it should be, or the form of a cursor
        that this version does not read.
        """
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if type(value) is not dict:
            raise CursorError(f"{_NONE}: {reprlib.repr(text)} is no JSON object")
        form = _field(value, "cursor", _form)
        if form != _FORM:
            raise CursorError(
                f"a cursor of form {form}; this version reads form {_FORM}: resume with the version that saved it, or"
                " begin at 'start', at a time, or live"
            )
        return cls(
            _field(value, "stream", _stream),
            _field(value, "positions", _positions),
            _field(value, "frontier", _times),
            _field(value, "aborted", _times),
            _field(value, "untold", _times),
            _field(value, "seen_from", _times_or_none),
            _field(value, "topics", _topics),
            _field(value, "new_topics", _new_topics),
        )


def carried(topics: TopicFilter) -> TopicFilter | str:
    """A filter as a cursor carries it: itself, or a digest of it (F9)."""
    return topics if length(topics) <= MAX_TOPICS else digest(topics)


def kept_of(wanted: TopicFilter, kept: TopicFilter) -> TopicFilter:
    """The shorter of two filters that say which of `wanted` are `kept`: these, or all but those that are new.

    So one new topic beside a thousand others costs a cursor no more than one alone.
    """
    all_but_new = EVERYTHING.without(wanted.without(kept))
    return min(kept, all_but_new, key=length)


def length(topics: TopicFilter) -> int:
    """About how many bytes a cursor needs for a filter, before they are written in hex."""
    return topics.size + 4 * len(topics)


def digest(topics: TopicFilter) -> str:
    """A digest of a filter; equal filters have equal digests."""
    state = blake2b(digest_size=16)
    for prefix, wanted in topics:
        state.update(b"%d%d:%s" % (wanted, len(prefix), prefix))
    return state.hexdigest()


# ---- the fields ----


def _field(value: dict[str, Any], name: str, read: Callable[[Any], T]) -> T:
    if name not in value:
        raise CursorError(f"{_NONE}: it has no field {name!r}")
    try:
        return read(value[name])
    except (ValueError, TypeError, AttributeError, RecursionError, TimeShapeError):
        raise CursorError(f"{_NONE}: {name!r} should be {_FIELDS[name]}, not {reprlib.repr(value[name])}") from None


def _form(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value


def _stream(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _positions(value: Any) -> dict[str, Position]:
    return {segment: _position(pair) for segment, pair in value.items()}


def _position(pair: Any) -> Position:
    incarnation, seq = pair
    if type(incarnation) is not int or type(seq) is not int:
        raise TypeError
    if not (0 <= incarnation <= MAX_TIME and NOTHING_YET <= seq <= MAX_TIME):
        raise ValueError
    return Position(incarnation, seq)


def _times(value: Any) -> tuple[Time, ...]:
    if type(value) is not list:
        raise TypeError
    return tuple(map(from_json, value))


def _times_or_none(value: Any) -> tuple[Time, ...] | None:
    return None if value is None else _times(value)


def _topics(value: Any) -> TopicFilter | str | None:
    return value if value is None or type(value) is str else _filter(value)


def _filter(value: Any) -> TopicFilter:
    wanted, rejected = [[bytes.fromhex(prefix) for prefix in prefixes] for prefixes in value]
    return TopicFilter(wanted, rejected)


def _in_hex(topics: TopicFilter) -> list[list[str]]:
    return [[prefix.hex() for prefix in prefixes] for prefixes in topics.prefixes]


def _new_topics(value: Any) -> tuple[NewTopics, ...]:
    if type(value) is not list:
        raise TypeError
    return tuple([_new(pair) for pair in value])


def _new(pair: Any) -> NewTopics:
    kept, whole_from = pair
    return NewTopics(_filter(kept), _times_or_none(whole_from))


_NONE = "this is no cursor as Cursor.to_json writes it"
_ARRAY = "an array of times"
_FIELDS = {
    "cursor": "its form, a number from 1 on",
    "stream": "the uid of its stream, a text",
    "positions": '{"SEGMENT": [INCARNATION, SEQ], ...} with numbers up to 2^63-1, and -1 as SEQ for nothing yet',
    "frontier": _ARRAY,
    "aborted": _ARRAY,
    "untold": _ARRAY,
    "seen_from": f"{_ARRAY}, or null",
    "topics": "a digest, or the wanted and the rejected prefixes in hex, as two arrays, or null",
    "new_topics": "an array of pairs: what is kept, as two arrays like topics, and an array of times or null",
}
