"""What `epochal top` shows of each stream in a snapshot: its trouble, its slowest reader, its order.

Nothing is fetched or drawn here: values in, values out. The catalog reports all that is shown here, except rates.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from epochal.catalog_api.answers import StreamInfo, SubscriptionInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.cli.io.output import merge_frontiers
from epochal.cli.top.rates import Rate, Segment, total
from epochal.client.subscriber.subscriber import MAX_WAITING_BYTES
from epochal.protocol.times import Time, less_equal, to_json
from epochal.verdicts import Trouble, judge, worst

SLOW_BYTES = MAX_WAITING_BYTES // 2
"""A reader with more waiting bytes is slow: half of what a client buffers before it stops to receive."""


class Order(StrEnum):
    """By what streams are sorted."""

    TROUBLE = "trouble"
    NAME = "name"
    RATE = "rate"
    LAG = "lag"


@dataclass(frozen=True, slots=True)
class Reader:
    """How far a subscription was at its last report. `lower`: what it had received; None before it has begun.

    `behind`: whether a time that is complete at the stream could still arrive there; None when that is not known.
    """

    subscriber: str
    lower: tuple[Time, ...] | None
    behind: bool | None
    waiting_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One stream, with what its readers and publishers report."""

    stream: StreamInfo
    frontier: tuple[Time, ...] | None
    trouble: Trouble
    slowest: Reader | None
    rate: Rate | None
    readers: tuple[SubscriptionInfo, ...] = ()

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return self.stream.qualified

    @property
    def held(self) -> HeldBack | None:
        """The holder that has held the frontier back for longest."""
        return next(iter(self.stream.held_back), None)

    def matches(self, text: str) -> bool:
        """Whether `text` is in the name of the stream or of one of its holders."""
        names = [self.name, *(held.writer or held.kind for held in self.stream.held_back)]
        return any(text.lower() in name.lower() for name in names)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one poll. `rates`: of the segments whose metrics could be read twice."""

    at: datetime
    streams: tuple[StreamInfo, ...]
    subscriptions: tuple[SubscriptionInfo, ...]
    rates: Mapping[Segment, Rate]


def rows(snapshot: Snapshot, order: Order = Order.TROUBLE, text: str = "") -> list[Row]:
    """The streams that match `text`, in that order."""
    readers: dict[str, list[SubscriptionInfo]] = {}
    for subscription in snapshot.subscriptions:
        readers.setdefault(subscription.uid, []).append(subscription)
    found = [_row(stream, readers.get(stream.uid, ()), snapshot.rates) for stream in snapshot.streams]
    return sorted((row for row in found if row.matches(text)), key=_KEYS[order])


def _row(stream: StreamInfo, readers: Sequence[SubscriptionInfo], known: Mapping[Segment, Rate]) -> Row:
    serving = [segment for segment in stream.segments if segment.state == "open"]
    merged = merge_frontiers(segment.lower for segment in serving)
    frontier = None if merged is None else tuple(merged)
    slowest = slowest_reader([read_reader(each, frontier) for each in readers])
    rate = total(known.get((stream.qualified, segment.id)) for segment in serving)
    return Row(stream, frontier, _trouble(stream, slowest), slowest, rate, tuple(readers))


def read_reader(subscription: SubscriptionInfo, frontier: Sequence[Time] | None) -> Reader:
    """A subscription against its stream's frontier."""
    lower = subscription.lower
    behind = None if lower is None or frontier is None else is_behind(lower, frontier)
    waiting = subscription.counters.get("waiting_bytes", 0)
    return Reader(subscription.subscriber, lower, behind, int(waiting))


def is_behind(lower: Iterable[Time], frontier: Sequence[Time]) -> bool:
    """Whether a time that may still arrive at the reader is complete at the stream.

    >>> is_behind([5], [8]), is_behind([8], [8]), is_behind([(0, 2)], [(0, 3), (1, 0)])
    (True, False, True)
    """
    return any(not any(less_equal(least, time) for least in frontier) for time in lower)


def slowest_reader(readers: Sequence[Reader]) -> Reader | None:
    """The slowest reader: one that has not begun, else the one at the least time, else the one with most waiting."""
    return min(readers, key=_slowness, default=None)


def _slowness(reader: Reader) -> tuple[Any, ...]:
    if reader.lower is None:
        return (0, 0, 0, -reader.waiting_bytes)
    least = sorted(reader.lower)[:1]  # in a linear extension of time; a complete stream has none, and comes last
    return (1, not reader.behind, not least, *least, -reader.waiting_bytes)


def _trouble(stream: StreamInfo, slowest: Reader | None) -> Trouble:
    """The worst trouble of a stream, or of its slowest reader."""
    found = worst(judge(stream))
    slow = slowest is not None and slowest.waiting_bytes >= SLOW_BYTES
    return Trouble.SLOW if found is Trouble.NONE and slow else found


# ---- order ----

_WORST_FIRST = list(Trouble)


def _by_trouble(row: Row) -> tuple[Any, ...]:
    """Complete streams come last: for how long they were held means nothing."""
    seconds = 0.0 if row.trouble is Trouble.NONE or row.held is None else row.held.seconds or 0.0
    return _WORST_FIRST.index(row.trouble), row.stream.phase == "Complete", -seconds, row.name


def _by_rate(row: Row) -> tuple[Any, ...]:
    return (0, -row.rate.records, -row.rate.appends, row.name) if row.rate is not None else (1, 0, 0, row.name)


def _by_lag(row: Row) -> tuple[Any, ...]:
    """Readers that are behind come first, then by waiting bytes: times of different streams do not compare."""
    if row.slowest is None:
        return 2, 0, row.name
    return not (row.slowest.behind or row.slowest.lower is None), -row.slowest.waiting_bytes, row.name


_KEYS = {
    Order.TROUBLE: _by_trouble,
    Order.NAME: lambda row: (row.name,),
    Order.RATE: _by_rate,
    Order.LAG: _by_lag,
}


# ---- for scripts ----


def document(snapshot: Snapshot, found: Sequence[Row]) -> dict[str, Any]:
    """A snapshot as JSON."""
    return {"at": snapshot.at.isoformat(timespec="milliseconds"), "streams": [_item(row) for row in found]}


def _item(row: Row) -> dict[str, Any]:
    return {
        "stream": row.name,
        "phase": row.stream.phase,
        "trouble": None if row.trouble is Trouble.NONE else str(row.trouble),
        "frontier": _times(row.frontier),
        "held_back": [held.to_json() for held in row.stream.held_back],
        "writers": len(row.stream.writers),
        "subscriptions": row.stream.subscriptions,
        "slowest": None if row.slowest is None else _slowest(row.slowest),
        "appends_per_second": None if row.rate is None else round(row.rate.appends, 3),
        "records_per_second": None if row.rate is None else round(row.rate.records, 3),
    }


def _slowest(reader: Reader) -> dict[str, Any]:
    return {
        "subscriber": reader.subscriber,
        "frontier": _times(reader.lower),
        "behind": reader.behind,
        "waiting_bytes": reader.waiting_bytes,
    }


def _times(times: Sequence[Time] | None) -> list[Any] | None:
    return None if times is None else [to_json(time) for time in sorted(times)]
