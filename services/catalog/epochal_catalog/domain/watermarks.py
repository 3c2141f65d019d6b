"""What a round makes of a stream's marks, or of its frontier: a watermark, or who holds it (E51).

From rows to a plan: nothing here is stored, and no clock is read. Times of marks are ints, whatever the stream's times
are; `now` and all that is compared with it are seconds of the catalog's served time (E29).

Sources: PDP-33 watermarking, W7-W14, W18, W22, W24; E25, E29, E51-E53.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from epochal.protocol.cuts import Lineage, StreamPosition
from epochal.protocol.messages import Position
from epochal.protocol.watermarks import AT_THE_END, Watermark


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest (time, position) of a writer: all that it appended before is at or before the position (E25).

    `heard`: when it was accepted. `behind`: when a round first saw the writer not above the last watermark, or, before
    the first one, at all. `left`: it came with a close or a finish, and ends what the writer notes.
    """

    writer: str
    time: int
    position: StreamPosition
    heard: float
    behind: float | None = None
    left: bool = False


class Part(StrEnum):
    """The part of a writer in a stream's time."""

    TAKES_PART = "takes part"
    STANDS = "stands"
    LATE = "late"
    IGNORED = "ignored"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a stream's manifest says of its watermarks, in seconds."""

    interval: float
    timeout: float
    min_writers: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round does. It is one transaction, on condition that the last watermark and these marks are unchanged.

    `holds`: writer -> until when it keeps the next watermark back, if nothing more is heard of it.
    """

    watermark: Watermark | None = None
    removed: tuple[Mark, ...] = ()
    behind: tuple[Mark, ...] = ()
    """Marks of which it is to be stored since when their writers are, or no longer are, not above the watermark."""
    holds: Mapping[str, float] | None = None
    starts: float | None = None
    """Until when, at most, the first watermark waits for more writers to note."""


def part(mark: Mark, last: Watermark | None, now: float, terms: Terms, *, grace: bool = False) -> Part:
    """The part of a mark's writer after the watermark `last` (E51).

    In a time of `grace`, after the catalog was not served, nobody is left out: marks that waited come in first (E29).
    """
    if mark.left:
        return Part.LEFT
    if last is None or mark.time > last.lower:
        return Part.TAKES_PART
    if mark.time == last.lower:
        return Part.STANDS
    since = now if mark.behind is None else mark.behind
    return Part.LATE if grace or now < since + terms.timeout else Part.IGNORED


def round_of(
    marks: Sequence[Mark],
    last: Watermark | None,
    lineage: Lineage,
    now: float,
    terms: Terms,
    *,
    number: int = 0,
    grace: bool = False,
) -> Plan:
    """One round of a stream with marks (E51). `number`: the least that a new watermark may have (E12 fencing)."""
    removed, behind, holds = list[Mark](), list[Mark](), dict[str, float]()
    taking: list[Mark] = []
    for known in marks:
        mark = _seen(known, last, now)
        over = _over(mark, last, now, terms, grace=grace)
        if over:
            removed.append(known)
            continue
        if mark.behind != known.behind:
            behind.append(mark)
        if last is None or mark.time > last.lower:
            taking.append(mark)
            continue
        until = _holds_until(mark, last, terms)
        if grace or now < until:
            holds[mark.writer] = until
    plan = Plan(removed=tuple(removed), behind=tuple(behind), holds=holds)
    if holds or not taking:
        return plan
    watermark = _joined(taking, last, lineage, number)
    if last is not None:
        return replace(plan, watermark=watermark)
    if (starts := _starts(taking, now, terms)) is not None:
        return replace(plan, starts=starts)
    return replace(plan, watermark=watermark, behind=tuple(replace(mark, behind=None) for mark in taking))


def _seen(mark: Mark, last: Watermark | None, now: float) -> Mark:
    """Since when it is not above the last watermark: it is seen now, or no longer so."""
    if last is not None and mark.time > last.lower:
        return mark if mark.behind is None else replace(mark, behind=None)
    return mark if mark.behind is not None else replace(mark, behind=now)


def _over(mark: Mark, last: Watermark | None, now: float, terms: Terms, *, grace: bool) -> bool:
    """Whether a mark is to be removed: a watermark has passed it, and its writer has left or is silent for too long."""
    if last is None or mark.time > last.lower:
        return False
    return mark.left or (not grace and now >= _silent_until(mark, terms))


def _silent_until(mark: Mark, terms: Terms) -> float:
    assert mark.behind is not None, "it is set when a round first sees it not above the watermark"
    return max(mark.heard, mark.behind) + terms.timeout


def _holds_until(mark: Mark, last: Watermark, terms: Terms) -> float:
    """A writer that stands holds while it is heard; a late one holds for one time-out, however often it notes."""
    assert mark.behind is not None, "it is set when a round first sees it not above the watermark"
    return mark.behind + terms.timeout if mark.time < last.lower else _silent_until(mark, terms)


def _starts(taking: Sequence[Mark], now: float, terms: Terms) -> float | None:
    """Until when the first watermark waits for slow starters; None if it waits no more (W24)."""
    first = min(mark.behind for mark in taking if mark.behind is not None)
    enough = len(taking) >= terms.min_writers
    until = first + (terms.interval if enough else max(terms.interval, terms.timeout))
    return until if now < until else None


def _joined(taking: Sequence[Mark], last: Watermark | None, lineage: Lineage, number: int) -> Watermark:
    positions = [mark.position for mark in taking]
    return Watermark(
        number=number if last is None else max(number, last.number + 1),
        lower=min(mark.time for mark in taking),
        upper=max(mark.time for mark in taking),  # it never falls: the greatest mark takes part until it is passed
        cut=lineage.upper_bound(positions if last is None else [last.cut, *positions]),
        floor=lineage.lower_bound(positions),
    )


@dataclass(frozen=True, slots=True)
class SegmentFrontier:
    """A segment's lower frontier, a time or None at its end, and the last event by which it was reached (E52)."""

    lower: int | None
    at: Position


def by_frontier(
    segments: Mapping[str, SegmentFrontier], last: Watermark | None, lineage: Lineage, *, number: int = 0
) -> Watermark | None:
    """The watermark of a stream whose own frontier gives the times; None where that has not moved (E52).

    `segments`: all that take appends. Where all of them are at their ends, the stream is complete (E53).
    """
    times = [segment.lower for segment in segments.values() if segment.lower is not None]
    lower, upper = (min(times), max(times)) if times else (AT_THE_END, AT_THE_END)
    if lower <= (0 if last is None else last.lower):
        return None
    position = {segment: frontier.at for segment, frontier in segments.items()}
    return Watermark(
        number=number if last is None else max(number, last.number + 1),
        lower=lower,
        upper=upper if last is None else max(last.upper, upper),
        cut=lineage.upper_bound([position] if last is None else [last.cut, position]),
    )


def ended(last: Watermark | None, lineage: Lineage, position: StreamPosition, *, number: int = 0) -> Watermark | None:
    """The last watermark of a complete stream, whose segments end at `position`; None if it has that already (E53)."""
    if last is not None and last.lower == AT_THE_END:
        return None
    return Watermark(
        number=number if last is None else max(number, last.number + 1),
        lower=AT_THE_END,
        upper=AT_THE_END,
        cut=lineage.upper_bound([position] if last is None else [last.cut, position]),
    )
