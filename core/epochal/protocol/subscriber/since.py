"""Where a subscription begins: every form of `since`, read in one place.

`since` is about a whole stream and comes from people: what is wrong with it is raised before anything is connected.

Sources: rules E13, E16, E20; docs/python.md (Where to begin).
"""

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from epochal.errors import CursorError, TimeShapeError, UsageError
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.messages import NOTHING_YET, Position
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.times import MAX_TIME, Time, TimeShape, from_json

FORMS = "start, seq:N, time:T, frontier:[T, ...], cut:{SEGMENT: N, ...}"
"""The forms of a text."""


class From(StrEnum):
    """Where to begin, if not after a position."""

    LIVE = "live"
    START = "start"


class AfterEvent(NamedTuple):
    """Begin after event `seq`, as one that joins there (E13 retention); for None in the present incarnation."""

    seq: int
    incarnation: int | None = None


Begin: TypeAlias = From | Position | AfterEvent | EpochQuery
"""An `EpochQuery` begins before the first event of all epochs that it wants; the history must still have it."""


class AfterSeq(NamedTuple):
    """After event `seq` of a stream's only segment."""

    seq: int


class AfterTime(NamedTuple):
    """Every epoch that is not <= `time` (E20)."""

    time: Time


class FromFrontier(NamedTuple):
    """Every epoch that one of `times` reaches (E20)."""

    times: tuple[Time, ...]


class AfterCut(NamedTuple):
    """After one event of each segment's log."""

    places: Mapping[str, AfterEvent]


ParsedSince: TypeAlias = From | Cursor | AfterSeq | AfterTime | FromFrontier | AfterCut
"""`since`, read but not yet checked against the stream."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The meaning of `since` for one stream: where each segment begins, and which epochs may be delivered."""

    places: Mapping[str, Begin]
    cursor: Cursor | None = None
    wanted: tuple[Time, ...] | None = None
    """If not None, only epochs that one of these reaches are delivered."""


def read_since(given: object) -> ParsedSince:
    """Read `since`: None (live), a `Cursor`, or one of `FORMS`.

    Raises `UsageError` that says which form is wrong, and how it is written.

    >>> read_since("time:[3, 1]"), read_since("seq:17")
    (AfterTime(time=(3, 1)), AfterSeq(seq=17))
    >>> read_since('cut:{"0": 17, "1": [2, 5]}').places["1"]
    AfterEvent(seq=5, incarnation=2)
    """
    if given is None:
        return From.LIVE
    if isinstance(given, Cursor):
        return given
    if not isinstance(given, str):
        raise UsageError(f"since is None (live), a Cursor or one of {FORMS}; not {reprlib.repr(given)}")
    if given == From.START:
        return From.START
    form, colon, text = given.partition(":")
    read = _READERS.get(form) if colon else None
    if read is None:
        raise UsageError(f"since is None (live), a Cursor or one of {FORMS}; not {reprlib.repr(given)}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"since {reprlib.repr(given)}: this is no JSON; it is written {_WRITTEN[form]}") from None
    try:
        return read(value)
    except (ValueError, TypeError, RecursionError, TimeShapeError) as error:
        raise UsageError(f"since {reprlib.repr(given)}: {error}; it is written {_WRITTEN[form]}") from None


def is_since(text: str) -> bool:
    """Whether `text` has one of the forms, even if badly written, and so is not the name of a file."""
    return text == From.START or (":" in text and text.partition(":")[0] in _READERS)


def placed(since: ParsedSince, stream: str, shape: TimeShape, segments: Iterable[str]) -> Beginning:
    """Apply `since` to the stream with uid `stream`.

    Raises `CursorError` for a cursor of another stream, `TimeShapeError` for times that are not the stream's, and
    `UsageError` for positions that are not of its segments.
    """
    names = list(segments)
    match since:
        case Cursor():
            _check_cursor(since, stream, names)
            return Beginning(dict(since.positions), cursor=since)
        case AfterSeq():
            if len(names) != 1:
                raise UsageError(
                    f"since seq:{since.seq} needs a stream of one segment; this one has {len(names)}: give a position "
                    "for each, as cut:{...}"
                )
            return Beginning({names[0]: AfterEvent(since.seq)})
        case AfterCut():
            if set(since.places) != set(names):
                raise UsageError(
                    f"since cut: has positions for the segments {sorted(since.places)}; the stream has {sorted(names)}"
                )
            return Beginning(dict(since.places))
        case AfterTime():
            # A time is not <= T exactly if one of the minimal times that are not <= T reaches it.
            return _wanting(shape.successors_past(shape.check(since.time)), names)
        case FromFrontier():
            return _wanting([shape.check(time) for time in since.times], names)
        case From():
            return Beginning(dict.fromkeys(names, since))


def _wanting(times: Iterable[Time], names: Iterable[str]) -> Beginning:
    wanted = tuple(Antichain(times))
    return Beginning(dict.fromkeys(names, EpochQuery(wanted)), wanted=wanted)


def _check_cursor(cursor: Cursor, stream: str, names: list[str]) -> None:
    if cursor.stream != stream:
        raise CursorError(
            "the cursor is of another stream than the present one of that name, which may have been created again since"
        )
    if set(cursor.positions) != set(names):
        raise CursorError(f"the cursor has segments {sorted(cursor.positions)}, the stream has {names}")


# ---- the forms ----


def _seq(value: Any) -> int:
    if type(value) is not int or not NOTHING_YET <= value <= MAX_TIME:
        raise ValueError(f"{reprlib.repr(value)} is no event's number")
    return value


def _read_seq(value: Any) -> AfterSeq:
    return AfterSeq(_seq(value))


def _read_time(value: Any) -> AfterTime:
    return AfterTime(from_json(value))


def _read_frontier(value: Any) -> FromFrontier:
    if type(value) is not list:
        raise ValueError(f"{reprlib.repr(value)} is no array of times")
    return FromFrontier(tuple(map(from_json, value)))


def _read_cut(value: Any) -> AfterCut:
    if type(value) is not dict:
        raise ValueError(f"{reprlib.repr(value)} is no object with a position for each segment")
    return AfterCut({segment: _place(place) for segment, place in value.items()})


def _place(value: Any) -> AfterEvent:
    if type(value) is not list:
        return AfterEvent(_seq(value))
    if len(value) != 2:
        raise ValueError(f"{reprlib.repr(value)} is no pair of incarnation and number")
    place = Position(*map(_seq, value))
    return AfterEvent(place.seq, place.incarnation)


_READERS: dict[str, Callable[[Any], ParsedSince]] = {
    "seq": _read_seq,
    "time": _read_time,
    "frontier": _read_frontier,
    "cut": _read_cut,
}
_WRITTEN = {
    "seq": "seq:N, with the number of the last event not wanted, -1 for none",
    "time": "time:T, with an int or a (nested) array of such",
    "frontier": "frontier:[T, ...], an array of times, each an int or a (nested) array of such",
    "cut": 'cut:{"SEGMENT": N, ...}, with N as in seq:N, or [INCARNATION, N]',
}
