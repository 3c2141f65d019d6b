"""What a subscriber of the demo computes from whole hours, and whether it is what plain Spark computes.

Pure: hours and sums in, faults out.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LEAST_LATE_SHARE = 0.25
"""Of all hours, those that the late subscriber must have seen; fewer would show little."""
MOST_BYTES = 0.5
"""Of the bytes of all airports, those that a subscriber of one may be sent at most: each has about a third."""


class Sums(NamedTuple):
    """Of one hour and origin: flights, and number and sum (minutes) of the departure delays that are known."""

    flights: int
    delays: int
    delay: int


Hours = Mapping[int, Mapping[str, Sums]]
"""Hour, as digits like 2013010105, to origin to sums."""


@dataclass(slots=True)
class Tally:
    """Sums of the hours that one subscriber was given, each hour once and whole."""

    hours: dict[int, dict[str, Sums]] = field(default_factory=dict)
    flights: int = 0
    faults: list[str] = field(default_factory=list)
    """What must never happen: an hour that came twice, or that was aborted."""

    def add(self, hour: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Take one complete hour."""
        if hour in self.hours:
            self.faults.append(f"{show_hour(hour)} was delivered twice")
        sums: dict[str, list[int]] = {}
        for record in records:
            entry = sums.setdefault(record["origin"], [0, 0, 0])
            entry[0] += 1
            if record["dep_delay"] is not None:
                entry[1] += 1
                entry[2] += record["dep_delay"]
        self.hours[hour] = {origin: Sums(*entry) for origin, entry in sorted(sums.items())}
        self.flights += sum(entry[0] for entry in sums.values())


class Join(NamedTuple):
    """How the late subscriber joined."""

    complete: int
    """Hours that were complete."""
    total: int
    active: tuple[int, ...]
    """Hours of which a part had been published: the subscriber must never see them."""
    airport: str | None = None
    """The only one that it asked for, through a relay; None: it asked for all."""
    ways: tuple[str, ...] = ()
    """On which it reads the segments, such as `relay:flights`."""


class Kill(NamedTuple):
    """How a publisher was killed."""

    segment: str
    """A segment that it served, and that had been given data."""
    complete: int
    """Hours that were complete."""
    total: int
    active: tuple[int, ...]
    """Hours of which a part had been published."""
    how: str = "killed with -9"
    """What was done to it."""


def read_truth(path: Path) -> dict[int, dict[str, Sums]]:
    """The sums that plain Spark computed."""
    return truth_of(json.loads(path.read_text(encoding="utf-8")))


def truth_of(rows: Iterable[tuple[int, str, int, int, int]]) -> dict[int, dict[str, Sums]]:
    """The same from rows of hour, origin and sums."""
    truth: dict[int, dict[str, Sums]] = {}
    for hour, origin, *sums in rows:
        truth.setdefault(hour, {})[origin] = Sums(*sums)
    return truth


def only(hours: Hours, airport: str | None) -> Hours:
    """The sums of one airport, and the hours that have any; None: of all."""
    if airport is None:
        return hours
    return {hour: {airport: sums[airport]} for hour, sums in hours.items() if airport in sums}


def check_early(truth: Hours, tally: Tally) -> list[str]:
    """What is wrong with the sums of the subscriber that was there from the start: it must have every hour."""
    missing = [f"{show_hour(hour)} was never complete" for hour in sorted(truth.keys() - tally.hours.keys())]
    return [*tally.faults, *missing, *_differences(truth, tally)]


def check_late(all_truth: Hours, tally: Tally, join: Join | None) -> list[str]:
    """What is wrong with the late one's: it must have whole hours only, all after its snapshots, and enough of them."""
    if join is None:
        return ["the late subscriber found no moment to join at which an hour was under way"]
    truth = only(all_truth, join.airport)
    wrong = [*tally.faults, *_differences(truth, tally)]
    if join.airport is not None and {way.partition(":")[0] for way in join.ways} != {"relay"}:
        wrong.append(f"it did not read through a relay: {', '.join(join.ways) or 'nothing'}")
    wrong += [
        f"part of {show_hour(hour)} was out before the join, and it was delivered"
        for hour in join.active
        if hour in tally.hours
    ]
    after = sorted(truth)[-len(tally.hours) :] if tally.hours else []
    wrong += [
        f"{show_hour(hour)} came after the join and was not delivered" for hour in after if hour not in tally.hours
    ]
    before = sorted(truth)[: len(truth) - len(tally.hours)]
    if before and before[-1] // 100 not in {hour // 100 for hour in join.active}:
        wrong.append(f"{show_hour(before[-1])} was not under way at the join, and it was not delivered")
    if not 0.3 <= join.complete / max(1, len(all_truth)) <= 0.7:
        wrong.append(f"it joined when {join.complete} of {len(all_truth)} hours were complete, not 30 to 70 %")
    if len(tally.hours) < LEAST_LATE_SHARE * len(truth):
        wrong.append(f"it saw {len(tally.hours)} of {len(truth)} hours, fewer than a quarter")
    return wrong


def check_bytes(sent: int | None, everything: int) -> list[str]:
    """What is wrong with the bytes that a subscriber of one airport was `sent`, and one of all (`everything`)."""
    if sent is None:
        return ["how many bytes it was sent was not reported"]
    if not 0 < sent <= MOST_BYTES * everything:
        return [f"it was sent {sent:,} of {everything:,} bytes; one airport has about a third"]
    return []


def check_kill(kill: Kill | None, back_after: float | None) -> list[str]:
    """What is wrong with the kill: it must have been done, within an hour, and the publisher be back (in seconds)."""
    if kill is None:
        return ["no publisher was killed"]
    wrong = [] if kill.active else ["the publisher was killed while no hour was under way"]
    return wrong if back_after is not None else [*wrong, "the publisher that was killed did not come back"]


def _differences(truth: Hours, tally: Tally) -> list[str]:
    return [
        f"{show_hour(hour)}: delivered {_show(sums)}, plain Spark says {_show(truth.get(hour, {}))}"
        for hour, sums in sorted(tally.hours.items())
        if sums != truth.get(hour)
    ]


def _show(sums: Mapping[str, Sums]) -> str:
    return ", ".join(f"{origin} {tuple(entry)}" for origin, entry in sums.items()) or "nothing"


def show_hour(hour: int) -> str:
    """An hour for people.

    >>> show_hour(2013010105)
    '2013-01-01 05:00'
    """
    digits = str(hour)
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {digits[8:]}:00"


def show_hours(hours: Iterable[int]) -> str:
    """Several hours in short: the first and the last.

    >>> show_hours([2013010105]), show_hours([2013010105, 2013010106, 2013010109])
    ('2013-01-01 05:00', '2013-01-01 05:00 to 09:00')
    """
    first, *rest = sorted(hours)
    return show_hour(first) if not rest else f"{show_hour(first)} to {show_hour(rest[-1])[11:]}"
