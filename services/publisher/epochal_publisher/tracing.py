"""The spans `append STREAM`: one for each group commit and each trace in it, when it is durable and carried out.

Separate from the process, which without tracing never comes here.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from epochal.client.tracing import contexts
from epochal.otel import names, sdk
from epochal.protocol import messages as m
from epochal.protocol.effects import PublisherEffect as Effect
from epochal.protocol.effects import Push

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class Appends:
    """Makes them; only for batches whose writers have sampled them."""

    def __init__(self, tracer: "Tracer", stream: str) -> None:
        self._tracer, self._stream = tracer, stream

    @classmethod
    def start(cls, stream: str) -> Self | None:
        """None where this process sends no traces."""
        provider = sdk.provider()
        return None if provider is None else cls(provider.get_tracer(names.SCOPE), stream)

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
        """The parent is the first batch's span; the others of the trace are linked."""
        from opentelemetry.trace import Link, NonRecordingSpan, set_span_in_context

        (first, *others), left_out, _ = contexts(batch.meta for batch in batches if batch.meta is not None)
        attributes = names.on_stream("append", self._stream)
        attributes |= {
            names.PARTITION: segment, names.INCARNATION: incarnation, names.FIRST: batches[0].seq,
            names.LAST: batches[-1].seq, names.APPENDS: len(batches),
            names.MESSAGES: sum(batch.records for batch in batches), names.DURABLE: seconds,
        }  # fmt: skip
        if left_out:
            attributes[names.LINKS_LEFT_OUT] = left_out
        self._tracer.start_span(
            names.span_name("append", self._stream), set_span_in_context(NonRecordingSpan(first)),
            attributes=attributes, links=[Link(other) for other in others], start_time=end - int(seconds * 1e9),
        ).end(end)  # fmt: skip
