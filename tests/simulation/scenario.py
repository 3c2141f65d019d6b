"""What one run is like: how many of everything, and how often what goes wrong.

A test can fix some of it and leave the rest to chance.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from epochal.protocol.messages import MAX_FILTER_ENTRIES
from epochal.protocol.times import TimeShape


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times in seconds, rates in times a second (of each segment, writer or subscriber)."""

    segments: int
    writers: int
    subscribers: int
    shape: str
    min_writers: int
    seconds: float
    """How long faults and writers go on before the ending."""
    writer_timeout: float
    longest_delay: float
    high_water: int
    retention_bytes: int
    retention_age: float
    skew: tuple[int, ...]
    """Weight of each segment among the appends; 0 keeps one empty."""
    break_rate: float
    crash_rate: float
    stall_rate: float
    death_rate: float
    hang_rate: float
    pause_rate: float
    subscriber_crash_rate: float
    pulling: float
    """Share of the subscribers that are never pushed anything, unless they change."""
    switch_rate: float
    """How often a subscriber changes between both."""
    pace: float
    """Mean time between two things that a writer does."""
    all_finish: bool
    """Whether the same writers finish the stream at the end, connections still breaking; else new ones do, in peace."""
    skipping: bool = True
    """Whether publishers leave out what a subscriber does not want at the start of a history, or are too old to."""
    lost_at_end: int = 0
    """How many of these writers vanish for good instead of finishing; one is always left that finishes."""
    per_process: int = 1
    """How many segments a publisher process hosts: they crash, stall and come back together."""
    together_rate: float = 0.0
    """How often a machine dies with publishers and writers on it; the writers come back under their ids."""
    catalog_away_rate: float = 0.0
    """How often the catalog answers nobody for a while."""
    slow_reports: float = 0.1
    """Share of the reports to the catalog, and of its answers, that may take longer than is waited for them."""
    record_trip: float = 0.0
    """The least time that a record takes to the catalog and back."""
    catalog_restored_rate: float = 0.0
    """How often an older copy of the catalog is put back; then the numbers that it gives out follow the clock (E12).

    Only for logs on disk: what a copy does not know of a memory that is lost after that, nobody knows.
    """
    stop_rate: float = 0.0
    """How often a publisher process stops in order, as in a rolling update."""
    unknown_horizons: float = 0.0
    """Share of the starts at which nothing is known of the last incarnation: its volume is lost, or there was none, and
    it was of a version that recorded no horizon (E11)."""
    wrong_address_rate: float = 0.0
    """How often the address of a segment leads to a publisher of another stream for a while (E48)."""
    hurry_rate: float = 0.0
    """How often a writer does nothing but move for a while, faster than the catalog can record it."""
    interrupt_rate: float = 0.0
    """Share of the epochs and events that are fetched by a call that is interrupted, and handed out by the next."""
    durable: bool = False
    """Whether publishers keep their logs on disk."""
    longest_sync: float = 0.0
    """... which takes up to so long."""
    interval: bool = False
    """... and tell what may be lost before it is synced (policy `interval`)."""
    filtering: float = 0.3
    """Share of the subscribers that do not want all topics."""
    whole_filter: bool = True
    """Whether they say so as they join (`push.initialFilter: none`); else all is pushed to them."""
    hello_entries: int = MAX_FILTER_ENTRIES
    """The most prefixes that one message names. Where filters have more, publishers are told step by step."""
    change_rate: float = 0.0
    """How often each subscriber of epochs comes to want others."""
    relays: int = 0
    """Relays of each segment."""
    relaying: float = 0.8
    """Share of the readers' connections that are made to one of them."""
    relay_faults: float = 0.0
    """How often each of them dies, stops, stalls, loses its connection, or changes its way."""
    web_readers: int = 0
    """Readers of whole epochs over HTTP, which share one subscription of a relay, and begin at any time."""
    ring_bytes: int = 9_000
    """What the relay keeps for them: as it counts, about three epochs, so that slow readers need history."""
    power_losses: float = 0.5
    """Share of the crashes that are of the whole machine: what was written and not synced may be gone with it."""

    @property
    def time_shape(self) -> TimeShape:
        """The shape of the stream's times."""
        return TimeShape.parse(self.shape)

    @property
    def tells_first(self) -> bool:
        """Whether filters are told before a join, which takes as long again as the join."""
        return self.whole_filter and not self.hello_entries

    @property
    def forgets(self) -> bool:
        """Whether publishers without a disk drop history that is too old, or too much."""
        return self.retention_bytes < 1 << 30 or self.retention_age < 3600

    @property
    def names(self) -> list[str]:
        """The ids of the segments."""
        return [str(number) for number in range(self.segments)]

    @classmethod
    def draw(cls, random: Random, overrides: dict[str, Any]) -> "Scenario":
        """A random one; `overrides` fixes fields."""

        def rate(*choices: float) -> float:
            return random.choice(choices)

        durable = overrides.get("durable", False)
        segments = overrides.get("segments", random.choice((1, 2, 2, 3, 4)))
        writers = overrides.get("writers", random.choice((1, 2, 2, 3)))
        skew = [random.choice((1, 1, 3)) for _ in range(segments)]
        if segments > 1 and random.random() < 0.4:
            skew[random.randrange(segments)] = 0
        drawn = cls(
            segments=segments,
            writers=writers,
            subscribers=random.choice((2, 3, 4)),
            shape=random.choice(("int", "int", "(int, int)", "(int, (int, int))")),
            min_writers=random.choice((1, 1, writers)),
            seconds=random.choice((5.0, 8.0, 12.0)),
            writer_timeout=random.choice((2.5, 4.0)),
            longest_delay=random.choice((0.005, 0.05, 0.3)),
            high_water=random.choice((4, 20, 1000)),
            retention_bytes=random.choice((0, 6_000, 1 << 30, 1 << 30, 1 << 30)),
            retention_age=random.choice((3600.0, 3600.0, 3600.0, 4.0)),
            skew=tuple(skew),
            break_rate=rate(0, 0, 0.05, 0.2),
            crash_rate=rate(0, 0, 0, 0.05, 0.15),
            stall_rate=rate(0, 0, 0.1),
            death_rate=rate(0, 0, 0.1, 0.2),
            hang_rate=rate(0, 0, 0.1),
            pause_rate=rate(0, 0, 0.2),
            subscriber_crash_rate=rate(0, 0.1, 0.3),
            pulling=random.choice((0.1, 0.3)),
            switch_rate=rate(0, 0, 0.2, 1.0),
            pace=random.choice((0.1, 0.2, 0.4)),
            all_finish=random.random() < 0.6,
            skipping=random.random() < 0.7,
            per_process=random.choice((1, 1, 2, 4)),
            together_rate=rate(0, 0, 0, 0.05),
            catalog_away_rate=rate(0, 0, 0.05, 0.15),
            slow_reports=random.choice((0.0, 0.1, 0.3)),
            record_trip=random.choice((0.0, 0.0, 0.05)),
            catalog_restored_rate=rate(0, 0, 0, 0.1) if durable else 0.0,
            stop_rate=rate(0, 0, 0.05, 0.1),
            wrong_address_rate=rate(0, 0, 0.05),
            hurry_rate=rate(0, 0, 0, 0.05),
            interrupt_rate=rate(0, 0, 0.1, 0.4),
        )
        unknown = rate(0, 0, 0, 0.3)
        drawn = replace(drawn, **overrides)
        if drawn.catalog_restored_rate or "unknown_horizons" in overrides:
            return drawn  # of a volume that is lost, and of what an older copy forgot, nobody would be left to know
        return replace(drawn, unknown_horizons=unknown)
