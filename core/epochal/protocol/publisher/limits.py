"""A publisher's settings, and the limits of one segment: bytes of an append and of an epoch, and times at once.

They hold for every writer alike. Whether a writer may append at a time at all is checked elsewhere (`appends`).

Sources: rules E1, E13; docs/protocol.md.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from epochal.errors import EpochalError, EpochTooLarge, PayloadTooLarge, TimeShapeError, TooManyEpochs
from epochal.protocol.log.history import EVENT_OVERHEAD
from epochal.protocol.times import Time, TimeShape

STATE_BYTES = 15_000
"""Most bytes of one list of times in a message: a header has room for four such lists."""

MAX_WRITERS = 4000
"""Most writers that may have a segment open at once; their ids fit one report."""
MAX_WAITING_OPENS = 1000
"""Opens that wait for the catalog's answer at once."""
MAX_DETAIL = 1000
"""Most characters of the reason for a refused append: thousands of these are kept in memory."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """The settings of a publisher, mostly from the stream's manifest; times in seconds."""

    shape: TimeShape
    min_writers: int = 1
    writer_timeout: float = 30.0
    hold_lost: bool = False
    """Whether what a lost writer held is kept for its next session instead of being released (E46 hold)."""
    stall: float = 1.0
    """A longer pause of the loop does not count as a writer's silence: all time-outs start again (E8)."""
    window: int = 8 * 2**20
    """Bytes that one writer may have unacknowledged."""
    max_payload: int = 16 * 2**20
    retention_bytes: int = 256 * 2**20
    """Bytes of history that are kept; 0 keeps none."""
    retention_age: float = 3600.0
    memory_bytes: int | None = None
    """Bytes of history that are kept in memory when more is on disk; None for all."""
    durable: bool = False
    """Whether there is a log on disk; then the effects include `Log`, with the notes to write beside the events."""


class SegmentLimits:
    """The limits of one segment, and the size of each active epoch. Bytes; `retention_bytes` is 0 for no history."""

    def __init__(self, shape: TimeShape, *, max_payload: int, retention_bytes: int) -> None:
        self._shape = shape
        self._max_payload = max_payload
        self._retention = retention_bytes
        self._max_times = shape.most_times(STATE_BYTES)
        self._sizes: dict[Time, int] = {}

    @property
    def sizes(self) -> Mapping[Time, int]:
        """The size of each active epoch, in bytes."""
        return self._sizes

    def restore(self, sizes: Mapping[Time, int]) -> None:
        """Continue with the sizes of the active epochs that the log has."""
        self._sizes = dict(sizes)

    def logged(self, time: Time, size: int) -> None:
        """An append of `size` bytes (payload and topic) at `time` is in the log."""
        self._sizes[time] = self._sizes.get(time, 0) + size + EVENT_OVERHEAD

    def keep_only(self, times: Container[Time]) -> None:
        """Keep the sizes of the epochs in `times`; all other epochs are over."""
        self._sizes = {time: size for time, size in self._sizes.items() if time in times}

    def refuses(self, time: Time, payload: int, topic: int) -> EpochalError | None:
        """The error for an append at `time` with these numbers of bytes in payload and topic; None if it fits."""
        if payload > self._max_payload:
            return PayloadTooLarge(f"{payload} bytes in one append; at most {self._max_payload} are allowed")
        if 0 < self._retention < self._sizes.get(time, 0) + payload + topic + EVENT_OVERHEAD:
            return EpochTooLarge(
                f"epoch {time!r} would exceed history.retention.bytes ({self._retention}); use smaller epochs or "
                "retain more"
            )
        return None

    def refuses_another(self, under_way: int) -> EpochalError | None:
        """The error if no epoch may begin beside `under_way` others; None if one may."""
        if under_way < self._max_times:
            return None
        return TooManyEpochs(
            f"{self._max_times} epochs of this segment are active, or aborted and not past; advance before beginning "
            "more"
        )

    def fits(self, time: Time) -> bool:
        """Whether a time has the segment's shape."""
        try:
            self._shape.check(time)
        except TimeShapeError:
            return False
        return True

    def check_times(self, times: Sequence[Time], known: int) -> None:
        """Raise for times of another shape, and for more times than a snapshot holds together with `known` others."""
        for time in times:
            self._shape.check(time)
        if len(times) + known > self._max_times:
            raise TooManyEpochs(
                f"{known} times here and {len(times)} more; a segment keeps track of at most {self._max_times} "
                "that are held, and as many that are active or aborted"
            )
