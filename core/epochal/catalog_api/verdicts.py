"""What is wrong with a stream by what its publishers report: values in, words out.

Separate from those who say it, so that `top`, `describe`, `doctor` and the operator's conditions agree.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochal.catalog_api.answers import StreamInfo

DISK_FULL = "disk_full"
"""A segment's counter: the operating system's error number (errno) while its log cannot be written; else 0."""

DISK_FULL_SECONDS = "disk_full_seconds"
"""A segment's counter: for how long that has been so."""


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
    """The verdict on a segment by its counters; None where its disk is well, or not spoken of.

    >>> full_disk("0", {"disk_full": 28, "disk_full_seconds": 1.5})
    FullDisk(segment='0', reason='No space left on device', seconds=1.5)
    """
    number, seconds = counters.get(DISK_FULL), counters.get(DISK_FULL_SECONDS)
    if not isinstance(number, int | float) or not number:
        return None
    return FullDisk(segment, os.strerror(int(number)), float(seconds) if isinstance(seconds, int | float) else 0.0)


def unacknowledged_because(stream: StreamInfo) -> list[str]:
    """Why what is published is not acknowledged now, a line for each segment; empty where no reason is known."""
    reasons: list[str] = []
    for segment in stream.segments:
        if segment.publisher is None:
            reasons.append(f"segment {segment.id} has no publisher")
        elif (full := full_disk(segment.id, segment.counters)) is not None:
            reasons.append(full.cause)
        elif segment.counters.get("waiting_bytes"):
            reasons.append(f"segment {segment.id}: appends wait until the catalog has recorded their times")
    return reasons
