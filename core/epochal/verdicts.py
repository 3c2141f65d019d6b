"""What is wrong with a stream, by what its publishers report to the catalog: values in, words out.

`top`, `doctor`, `describe`, `report` and `release` of the command line and the operator's conditions say it from here,
so that they agree. The catalog's interface has the facts. What counts as long, and what to do about it, is decided
here.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote
from typing import Any

from epochal.catalog_api.answers import SegmentInfo, StreamInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.requests import DISK_FULL, DISK_FULL_SECONDS
from epochal.catalog_api.texts import show_time
from epochal.protocol.blockers import HolderKind

HELD_LONG = 60.0
"""Seconds for which a time is held, after which its holder needs attention."""
SILENT_LONG = 10.0
"""Seconds without a heartbeat after which a writer has probably gone: heartbeats come every few seconds."""
WAITING_LONG = 5.0
"""Seconds for which appends wait for the catalog, after which that is reported: it records a time in milliseconds."""
MOST_NAMED = 10
"""Segments that one verdict names."""


class Trouble(StrEnum):
    """The problems that a stream can have, the worst first."""

    DOWN = "down"
    """A segment has no publisher: nothing is published or read there."""
    FULL = "full"
    """The log of a segment cannot be written: nothing that is published there is acknowledged."""
    LOST = "lost"
    """It waits for a lost writer (`progress.whenLost: hold`)."""
    HELD = "held"
    """Its frontier has been held for long, or by a silent writer; or records wait, and no writer is left."""
    WAITING = "waiting"
    """Appends wait for the catalog."""
    SLOW = "slow"
    """A reader's program does not take what has arrived: judged by the reader's report, not by the stream's."""
    NONE = "-"


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """One thing that is wrong with a stream."""

    trouble: Trouble
    words: str
    """The problem in one line, without the name of the stream."""
    advice: str
    """What to do about it, in one line."""


def judge(stream: StreamInfo) -> list[StreamVerdict]:
    """Everything that is wrong with a stream, the worst first. Nothing is once the stream is complete."""
    if stream.phase == "Complete":
        return []
    return [*_down(stream), *_full(stream), *_lost(stream), *_held(stream), *_waiting(stream)]


def worst(verdicts: Iterable[StreamVerdict]) -> Trouble:
    """The trouble of the first of the verdicts that `judge` returned."""
    return next((each.trouble for each in verdicts), Trouble.NONE)


# ---- segments without a publisher ----


def _down(stream: StreamInfo) -> list[StreamVerdict]:
    without = [segment.id for segment in stream.segments if segment.publisher is None]
    if not without:
        return []
    advice = "with `epochal up`, look at DIR/logs/publishers; else at the publishers' pods"
    return [StreamVerdict(Trouble.DOWN, f"no publisher for {_segments(without)}", advice)]


def _segments(ids: Sequence[str]) -> str:
    """`segment 0`, `segments 0, 1`; the first ten."""
    return f"segment{'s' if len(ids) > 1 else ''} {', '.join(ids[:MOST_NAMED])}"


# ---- full disks ----


@dataclass(frozen=True, slots=True)
class FullDisk:
    """The log of a segment cannot be written: nothing that is published there is acknowledged."""

    segment: str
    reason: str
    """The operating system's words."""
    seconds: float

    @property
    def cause(self) -> str:
        """The same text as long as it lasts, for what must not change all the time.

        >>> FullDisk("0", "No space left on device", 12.3).cause
        'segment 0: its log cannot be written (No space left on device), and nothing is acknowledged'
        """
        return f"segment {self.segment}: its log cannot be written ({self.reason}), and nothing is acknowledged"

    @property
    def words(self) -> str:
        """One line, with how long it has been so."""
        return f"{self.cause}, for {self.seconds:.0f} s now"


def full_disk(segment: str, counters: Mapping[str, Any]) -> FullDisk | None:
    """The verdict on a segment by its counters; None if its log can be written, or if they do not say.

    >>> full_disk("0", {"disk_full": 28, "disk_full_seconds": 1.5})
    FullDisk(segment='0', reason='No space left on device', seconds=1.5)
    """
    number, seconds = counters.get(DISK_FULL), counters.get(DISK_FULL_SECONDS)
    if not isinstance(number, int | float) or not number:
        return None
    return FullDisk(segment, os.strerror(int(number)), float(seconds) if isinstance(seconds, int | float) else 0.0)


def full_disks(stream: StreamInfo) -> list[FullDisk]:
    """The segments whose publishers cannot write their logs (E10 durability)."""
    served = [segment for segment in stream.segments if segment.publisher is not None]
    return [full for segment in served if (full := full_disk(segment.id, segment.counters)) is not None]


def _full(stream: StreamInfo) -> list[StreamVerdict]:
    advice = "free space on that disk; appends go on by themselves then. Or let the stream retain less"
    advice += " (history.retention)"
    return [StreamVerdict(Trouble.FULL, full.words, advice) for full in full_disks(stream)]


# ---- lost writers ----


def lost_holders(stream: StreamInfo) -> list[HeldBack]:
    """Where the stream waits for a lost writer, the longest wait first (E46 hold)."""
    return [held for held in stream.held_back if held.kind == HolderKind.LOST and held.writer]


def lost_writers(stream: StreamInfo) -> list[str]:
    """The lost writers that the stream waits for (E46 hold)."""
    return sorted({held.writer for held in lost_holders(stream) if held.writer})


def _lost(stream: StreamInfo) -> list[StreamVerdict]:
    """One verdict for each writer, by the segment that has waited for it longest."""
    first: dict[str, HeldBack] = {}
    for held in lost_holders(stream):
        first.setdefault(held.writer or "", held)
    return [
        StreamVerdict(
            Trouble.LOST,
            held.seen,
            f"start {writer} again under the same id, or: epochal release {stream.qualified} {quote(writer)}",
        )
        for writer, held in first.items()
    ]


# ---- other holders ----


def _held(stream: StreamInfo) -> list[StreamVerdict]:
    """The first holder that needs attention."""
    found = (_judge_holder(stream, held) for held in stream.held_back)
    return [verdict for verdict in found if verdict is not None][:1]


def _judge_holder(stream: StreamInfo, held: HeldBack) -> StreamVerdict | None:
    """Whether a holder needs attention.

    A stream without a writer is well, because no one publishes; but not while records wait there for completion.
    """
    seconds = held.seconds or 0.0
    words = held.words
    match held.kind:
        case "writer" if (held.silent or 0.0) > SILENT_LONG:
            advice = f"is {held.writer} still there? it is given up after progress.writerTimeout"
        case "writer" if seconds > HELD_LONG:
            advice = f"{held.writer} is alive; it should advance, or finish"
        case "returning" if seconds > SILENT_LONG:
            advice = f"start {held.writer} again, or wait for progress.writerTimeout"
        case "opening" if seconds > HELD_LONG and stream.writers:
            advice = "start the missing writers, or declare a smaller progress.minWriters"
        case "parked" if seconds > HELD_LONG and (epochs := _open_epochs(stream)):
            many = f"{epochs:,} epoch{'' if epochs == 1 else 's'}"
            words = f"records of {many} wait, and no one is left to complete them: {words}"
            advice = f"open a writer that advances, such as: epochal pub {stream.qualified} --advance T"
        case "finishing" if seconds > HELD_LONG:
            advice = "the writers of the other segments have not finished"
        case _:
            return None
    return StreamVerdict(Trouble.HELD, words, advice)


def _open_epochs(stream: StreamInfo) -> int:
    """Epochs with records that are not complete."""
    return sum(int(_number(segment.counters.get("open_epochs"))) for segment in stream.segments)


# ---- appends that wait for the catalog ----


def waiting_segments(stream: StreamInfo) -> list[str]:
    """The segments whose appends have waited long for the catalog. For a moment some do at each epoch (E11 horizon)."""
    return [segment.id for segment in stream.segments if _waits_long(segment)]


def _waits_long(segment: SegmentInfo) -> bool:
    if segment.publisher is None or not segment.counters.get("waiting_bytes"):
        return False
    # What waited when the publisher last reported has waited since: it reports seldom where the catalog fails.
    return _number(segment.counters.get("waiting_seconds")) + (segment.reported or 0.0) >= WAITING_LONG


def _waiting(stream: StreamInfo) -> list[StreamVerdict]:
    waiting = waiting_segments(stream)
    if not waiting:
        return []
    words = f"appends wait until the catalog has recorded their times, in {_segments(waiting)}"
    advice = "see that the catalog can write its database, and that the publishers reach it"
    return [StreamVerdict(Trouble.WAITING, words, advice)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# ---- what is said elsewhere ----


def lost_epochs(stream: StreamInfo) -> list[str]:
    """Which epochs are aborted because a publisher without storage ended: a text for each segment (E11 horizon)."""
    lost = [(segment.id, ", ".join(map(show_time, segment.below))) for segment in stream.segments if segment.below]
    return [f"segment {segment} up to {times}" for segment, times in lost]


def unacknowledged_because(stream: StreamInfo) -> list[str]:
    """Why what is published is not acknowledged now, a line for each segment; empty if no reason is known."""
    reasons: list[str] = []
    for segment in stream.segments:
        if segment.publisher is None:
            reasons.append(f"segment {segment.id} has no publisher")
        elif (full := full_disk(segment.id, segment.counters)) is not None:
            reasons.append(full.cause)
        elif segment.counters.get("waiting_bytes"):
            reasons.append(f"segment {segment.id}: appends wait until the catalog has recorded their times")
    return reasons
