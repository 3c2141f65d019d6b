"""How fast segments take appends: two readings of their publishers' counters, and the time between.

It asks no publisher: metrics as text in, rates out. Counters begin again with each process: a reading of another
incarnation, or one that went back, gives no rate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from epochal.cli.io.metrics import segment_samples

Segment = tuple[str, str]
"""The stream's `namespace/name`, and the segment's id."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one segment at `at`, in seconds of a clock that only goes forward."""

    at: float
    incarnation: float
    appends: float
    records: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Appends and records per second."""

    appends: float
    records: float


def readings(text: str, at: float) -> dict[Segment, Reading]:
    """The counters of each segment in a publisher's metrics; those that lack one are left out."""
    samples = segment_samples(text)
    found: dict[Segment, Reading] = {}
    for name, stream, segment in samples:
        values = [samples.get((each, stream, segment)) for each in ("incarnation", "appends_total", "records_total")]
        if name == "appends_total" and None not in values:
            found[stream, segment] = Reading(at, *(value or 0.0 for value in values))
    return found


def rates(before: Mapping[Segment, Reading], now: Mapping[Segment, Reading]) -> dict[Segment, Rate]:
    """The rate of each segment that both readings have.

    >>> rates({("a/b", "0"): Reading(1.0, 7, 10, 100)}, {("a/b", "0"): Reading(3.0, 7, 12, 150)})
    {('a/b', '0'): Rate(appends=1.0, records=25.0)}
    """
    found: dict[Segment, Rate] = {}
    for key, new in now.items():
        old = before.get(key)
        if old is None or old.incarnation != new.incarnation or new.at <= old.at:
            continue
        seconds = new.at - old.at
        rate = Rate((new.appends - old.appends) / seconds, (new.records - old.records) / seconds)
        if rate.appends >= 0 and rate.records >= 0:
            found[key] = rate
    return found


def total(parts: Iterable[Rate | None]) -> Rate | None:
    """The rate of a whole stream; None unless every segment has one, because a part would pass for the whole."""
    appends = records = 0.0
    found = list(parts)
    for part in found:
        if part is None:
            return None
        appends, records = appends + part.appends, records + part.records
    return Rate(appends, records) if found else None
