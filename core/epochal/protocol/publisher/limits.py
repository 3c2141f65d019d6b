"""How much one segment takes: bytes of an append and of an epoch, and times under way at once.

Apart from the publisher because these bounds are nobody's right: whoever may append is held to them all the same.

Sources: rules E1, E13; docs/protocol.md.
"""

from collections.abc import Container, Mapping, Sequence

from epochal.errors import EpochalError, EpochTooLarge, PayloadTooLarge, TooManyEpochs
from epochal.protocol.log.history import EVENT_OVERHEAD
from epochal.protocol.times import Time, TimeShape

STATE_BYTES = 15_000
"""Bytes that one list of times in a message may take: four of them fit a header, with room to spare."""

MAX_WRITER_ID = 253
"""Characters; the catalog, to which open writers are reported, takes no more."""
MAX_WRITERS = 4000
"""Writers that have a segment open at once; their ids fit one report."""
MAX_WAITING_OPENS = 1000
"""Opens that wait for the catalog's word at once."""
MAX_DETAIL = 1000
"""Characters of the reason for a refused append, of which thousands are remembered."""


class SegmentLimits:
    """The bounds of one segment, and how much its epochs hold; sizes in bytes, `retention_bytes` 0 for no history."""

    def __init__(self, shape: TimeShape, *, max_payload: int, retention_bytes: int) -> None:
        self._shape, self._max_payload, self._retention = shape, max_payload, retention_bytes
        self._max_times = shape.most_times(STATE_BYTES)
        self._sizes: dict[Time, int] = {}

    @property
    def sizes(self) -> Mapping[Time, int]:
        """What each active epoch holds, in bytes."""
        return self._sizes

    def restore(self, sizes: Mapping[Time, int]) -> None:
        """Go on from what the log has of each active epoch."""
        self._sizes = dict(sizes)

    def logged(self, time: Time, size: int) -> None:
        """An append of `size` bytes at `time`, payload and topic, is in the log."""
        self._sizes[time] = self._sizes.get(time, 0) + size + EVENT_OVERHEAD

    def keep_only(self, times: Container[Time]) -> None:
        """Forget the sizes of all other epochs: they are over."""
        self._sizes = {time: size for time, size in self._sizes.items() if time in times}

    def refuses(self, time: Time, payload: int, topic: int) -> EpochalError | None:
        """Why an append at `time` of so many bytes of payload and topic is too much; None if it is not."""
        if payload > self._max_payload:
            return PayloadTooLarge(f"{payload} bytes in one append; at most {self._max_payload} are allowed")
        if 0 < self._retention < self._sizes.get(time, 0) + payload + topic + EVENT_OVERHEAD:
            return EpochTooLarge(
                f"epoch {time!r} would exceed history.retention.bytes ({self._retention}); use smaller epochs or "
                "retain more"
            )
        return None

    def refuses_another(self, under_way: int) -> EpochalError | None:
        """Why no further epoch may begin beside `under_way` others; None if one may."""
        if under_way < self._max_times:
            return None
        return TooManyEpochs(
            f"{self._max_times} epochs of this segment are active, or aborted and not past; advance before beginning "
            "more"
        )

    def check_times(self, times: Sequence[Time], known: int) -> None:
        """Raise for times of another shape, and for more than a snapshot could say beside the `known` ones."""
        for time in times:
            self._shape.check(time)
        if len(times) + known > self._max_times:
            raise TooManyEpochs(
                f"{known} times here and {len(times)} more; a segment keeps track of at most {self._max_times} "
                "that are held, and as many that are active or aborted"
            )
