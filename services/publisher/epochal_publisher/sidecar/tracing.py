"""The spans `forward STREAM`: one for each connection of a writer to a segment, from its opening to its end.

Separate from the sockets, which do not use this module without tracing. Forwarded messages are not decoded; the writer
names its trace when it opens the connection.
"""

from typing import TYPE_CHECKING, Self

from epochal.client.tracing import contexts
from epochal.otel import names, sdk
from epochal.protocol import messages as m

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class Forwards:
    """Makes these spans, only for writers whose trace is sampled."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._spans: dict[bytes, Span] = {}

    @classmethod
    def start(cls) -> Self | None:
        """None if this process sends no traces."""
        provider = sdk.provider()
        return None if provider is None else cls(provider.get_tracer(names.SCOPE))

    def begins(self, peer: bytes, asked: m.Pass) -> None:
        """A writer has a connection to a publisher."""
        if asked.trace is None or not asked.trace[24] & 1:
            return
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        (parent,), _, _ = contexts([m.Meta(trace=asked.trace)])
        self._spans[peer] = self._tracer.start_span(
            names.span_name("forward", asked.stream), set_span_in_context(NonRecordingSpan(parent)),
            attributes={**names.on_stream("forward", asked.stream), names.PUBLISHER: asked.address},
        )  # fmt: skip

    def waits(self, peer: bytes | None, held: int) -> None:
        """The publisher does not take what the writer sends. Called once each time that the writer begins to wait."""
        span = None if peer is None else self._spans.get(peer)
        if span is not None:
            span.add_event("waiting for credit", {names.HELD: held})

    def ends(self, peer: bytes, error: str = "") -> None:
        """The writer has left, or its connection is lost."""
        span = self._spans.pop(peer, None)
        if span is None:
            return
        if error:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute(names.ERROR, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """The process ends."""
        for peer in list(self._spans):
            self.ends(peer, "sidecar_unavailable")
