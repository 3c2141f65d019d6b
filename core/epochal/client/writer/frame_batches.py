"""The batches of a frame: each group of its rows, encoded and divided into what the publishers take.

It needs no stream: groups of rows in, batches out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from epochal.client.encoding import frames
from epochal.client.encoding.record_checks import RecordChecks
from epochal.client.writer.batching import parts
from epochal.errors import RecordTypeError
from epochal.protocol.times import Time


class FrameBatch(NamedTuple):
    """One append of a frame."""

    time: Time
    segment: str | None
    """None: any segment may take it."""
    key: bytes | None
    payload: bytes
    records: int
    """How many the payload holds: with arrow one, else one for each row."""


class FrameEncoder:
    """Encodes the rows of frames for one stream; a batch has up to `most` records (with arrow, one)."""

    def __init__(
        self, encoding: str, encode: Callable[[Sequence[Any]], bytes], checks: RecordChecks | None, most: int
    ) -> None:
        self._encoding = encoding
        self._encode = encode
        self._checks = checks
        self._most = most

    def batches(self, group: frames.Group, time: Time) -> Iterator[FrameBatch]:
        """The batches of a group of rows, in its order.

        Raises `RecordTypeError` for a row that is not of the declared schema, and `PayloadTooLarge` for one that no
        publisher takes.
        """
        for piece in frames.pieces(group.rows, self._encoding, self._most):
            for payload, rows in parts(piece, self._payload):
                yield FrameBatch(time, group.segment, group.key, payload, 1 if self._encoding == "arrow" else rows)

    def _payload(self, rows: Any) -> bytes:
        records = frames.records(rows, self._encoding)
        if self._checks is not None and (fault := self._checks.fault(records)) is not None:
            raise RecordTypeError(f"a row is not what the stream declares: {fault.reason}")
        return self._encode(records)
