"""The spans `append STREAM`: for each group commit, one for each trace in it, made when it is durable and carried out.

Separate from the process, which does not use this module without tracing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Self

from epochal.otel import names, sdk
from epochal.otel.spans import Finished
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import PublisherEffect as Effect
from epochal.protocol.publisher.effects import Push


class Appends:
    """Makes these spans, only for batches whose trace is sampled."""

    def __init__(self, tell: Callable[[Finished], None], stream: str) -> None:
        self._tell = tell
        self._name = names.span_name("append", stream)
        self._on_stream = names.on_stream("append", stream)

    @classmethod
    def start(cls, stream: str) -> Self | None:
        """None if this process sends no traces."""
        tell = sdk.finished()
        return None if tell is None else cls(tell, stream)

    def committed(self, segment: str, incarnation: int, effects: Sequence[Effect], seconds: float) -> None:
        """`effects` are durable, `seconds` after they were sent to the disk."""
        traces: dict[bytes, list[m.Data]] = {}
        for effect in effects:
            if type(effect) is not Push or type(effect.message) is not m.Data:
                continue
            meta = effect.message.meta
            if meta is not None and meta.trace is not None and meta.trace[24] & 1:
                traces.setdefault(meta.trace[:16], []).append(effect.message)
        if traces:
            end = time.time_ns()
            for batches in traces.values():
                self._span(segment, incarnation, batches, end, seconds)

    def _span(self, segment: str, incarnation: int, batches: Sequence[m.Data], end: int, seconds: float) -> None:
        """The parent is the first batch's span; the others of the trace are linked, as many as may be."""
        spans = dict.fromkeys(batch.meta.trace for batch in batches if batch.meta is not None and batch.meta.trace)
        first, *others = spans
        attributes = self._on_stream | {
            names.PARTITION: segment, names.INCARNATION: incarnation, names.FIRST: batches[0].seq,
            names.LAST: batches[-1].seq, names.APPENDS: len(batches),
            names.MESSAGES: sum(batch.records for batch in batches), names.DURABLE: seconds,
        }  # fmt: skip
        if len(others) > names.MAX_LINKS:
            attributes[names.LINKS_LEFT_OUT] = len(others) - names.MAX_LINKS
        links = tuple(others[: names.MAX_LINKS])
        meta = batches[0].meta
        tracestate = b"" if meta is None else meta.tracestate
        start = end - int(seconds * 1e9)
        self._tell(Finished(self._name, first, tracestate, links, start, end, attributes))
