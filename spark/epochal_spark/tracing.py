"""One trace a micro-batch: `batch N` and `commit` in the driver, `send STREAM` in the tasks.

The sink and the publication work the same without it. Spark copies a query's local properties only at its start, so
they cannot carry a trace context for each batch. So trace id and root span id are derived from ids that both sides
know. A batch that runs again after a kill is a second root in the same trace, and samplers that decide by the trace id
agree in all processes. The driver's decision is still handed over with each batch, because its sampler may be another
kind.

A batch job is one batch, whose spans are made where its capability is held (`holder`).
"""

import contextlib
import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from epochal.errors import ConfigError, EpochalError
from epochal.otel import names, sdk
from epochal.protocol.times import Time, to_json
from epochal_spark.commit_channel import Handed

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext

_log = logging.getLogger("epochal.spark")

DRIVER, WORKER = "epochal-spark-driver", "epochal-spark-worker"
_SCOPE = "epochal.spark"


def trace_id(query: str, batch: int) -> int:
    """The trace of a micro-batch; `query` is the id that Spark keeps in the checkpoint."""
    return _derived(16, query, str(batch))


def root_id(query: str, run: str, batch: int) -> int:
    """The root span of one run of a micro-batch; `run` is Spark's id of the query's present run."""
    return _derived(8, query, run, str(batch))


def _derived(size: int, *parts: str) -> int:
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=size, person=b"epochal.trace").digest()
    return int.from_bytes(digest, "big") or 1


def trace_options() -> dict[str, str]:
    """The options that make a batch job's spans children of the current span; empty without one.

    `df.write.format("epochal").options(**epochal_spark.trace_options())`.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import trace

    handed = _handed(trace.get_current_span().get_span_context())
    return {} if handed is None else {name: value for name, value in handed._asdict().items() if value}


def _handed(context: "SpanContext") -> Handed | None:
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return Handed(parent, context.trace_state.to_header() if context.trace_state else "")


def _context(handed: Handed) -> "Context":
    """OpenTelemetry's context for it; empty if it is malformed."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value for name, value in handed._asdict().items() if value}
    return TraceContextTextMapPropagator().extract(carrier, _nowhere())


def _nowhere() -> "Context":
    from opentelemetry.context import Context

    return Context()


def _tracer() -> Any:
    """A tracer that takes given ids, if the provider is the SDK's; None without a provider."""
    provider = sdk.provider()
    if provider is None:
        return None
    tracer: Any = provider.get_tracer(_SCOPE)
    generator = getattr(tracer, "id_generator", None)
    if generator is not None and not isinstance(generator, _Given):
        tracer.id_generator = _Given(generator)
    return tracer


class _Given:
    """An id generator that returns ids set by the same thread, once each; else ids of another generator."""

    def __init__(self, otherwise: Any) -> None:
        self._otherwise = otherwise
        self._ids = threading.local()

    @contextlib.contextmanager
    def give(self, trace: int, span: int) -> Iterator[None]:
        self._ids.pair = (trace, span)
        try:
            yield
        finally:
            del self._ids.pair

    def generate_trace_id(self) -> int:
        return int(self._ids.pair[0] if hasattr(self._ids, "pair") else self._otherwise.generate_trace_id())

    def generate_span_id(self) -> int:
        return int(self._ids.pair[1] if hasattr(self._ids, "pair") else self._otherwise.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return not hasattr(self._ids, "pair") and bool(self._otherwise.is_trace_id_random())


# ---- the driver ----


class Batches:
    """The spans of one query's batches, or of a job's one batch; one is open at a time. Costs nothing untraced.

    `here`: link the spans of a query to the span that is current now.
    """

    def __init__(self, stream: str, query: str, *, here: bool = True) -> None:
        sdk.start(DRIVER, quick=True)
        self._stream = stream
        self._query = query
        self._tracer = _tracer()
        self._links: list[Link] = []
        self._root: Span | None = None
        if self._tracer is not None and here:
            from opentelemetry import trace as api

            current = api.get_current_span().get_span_context()
            if current.is_valid:
                self._links = [api.Link(current)]

    def begun(self, batch: int, query: str, run: str) -> None:
        """A micro-batch of Spark's `query` begins; the one before ends, also if it has not committed."""
        if self._tracer is None:
            return
        self.over()
        generator = getattr(self._tracer, "id_generator", None)
        ids: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(generator, _Given):
            ids = generator.give(trace_id(query, batch), root_id(query, run, batch))
        with ids:
            self._root = self._start(batch, _nowhere(), {"epochal.spark.query_id": query, "epochal.spark.run_id": run})

    def begun_job(self, parent: Handed | None) -> None:
        """The one batch of a job begins, as a child of the span that its options name."""
        if self._tracer is not None:
            self._root = self._start(0, _nowhere() if parent is None else _context(parent), {})

    def _start(self, batch: int, context: "Context", more: names.Attributes) -> "Span":
        attributes: names.Attributes = {
            names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: self._stream, names.QUERY: self._query,
            names.BATCH: batch, **more,
        }  # fmt: skip
        span: Span = self._tracer.start_span(names.batch_name(batch), context, attributes=attributes, links=self._links)
        return span

    @property
    def handed(self) -> Handed | None:
        """The trace context of the open batch, for its tasks."""
        return None if self._root is None else _handed(self._root.get_span_context())

    @contextlib.contextmanager
    def committing(self, rows: int, greatest: Time | None) -> Iterator["Span | None"]:
        """The span of the open batch's commit, with rows and greatest time; an error is recorded."""
        if self._root is None:
            yield None
            return
        from opentelemetry.trace import set_span_in_context

        attributes: names.Attributes = {names.MESSAGES: rows}
        if greatest is not None:
            attributes[names.GREATEST] = json.dumps(to_json(greatest))
        self._root.set_attributes(attributes)
        with (
            _naming_errors(self._root),
            self._tracer.start_as_current_span(
                names.COMMIT, set_span_in_context(self._root), attributes=attributes
            ) as span,
            _naming_errors(span),
        ):
            yield span

    def committed(self, span: "Span | None", frontier: tuple[Time, ...]) -> None:
        """The commit is done: every time that no element of `frontier` reaches is complete."""
        if span is not None and self._root is not None:
            left = json.dumps([to_json(time) for time in frontier])
            span.set_attribute(names.FRONTIER, left)
            self._root.set_attribute(names.FRONTIER, left)

    def over(self, error: BaseException | None = None) -> None:
        """The open batch, if there is one, is over."""
        root, self._root = self._root, None
        if root is not None:
            if error is not None:
                _fail(root, error)
            root.end()

    def close(self, error: BaseException | None = None) -> None:
        """The query is over: end the open span, and send all spans and metrics, within the time limit of a flush."""
        self.over(error)
        _flush()


@contextlib.contextmanager
def _naming_errors(span: "Span") -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _fail(span, error)
        raise


def _fail(span: "Span", error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(names.ERROR, error.code if isinstance(error, EpochalError) else type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)[:200]))


def _flush() -> None:
    ours = sdk.current()
    if ours is not None:
        ours.flush()
    sdk.flush_others(sdk.send_patience(os.environ))


# ---- tasks ----


class Task(NamedTuple):
    """The batch, partition and attempt of a task; in a batch job, Spark's ids of query and run are empty."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int


class Sending:
    """The span of one task's send, while it is current; it ends with `records`, and with `way` if known."""

    def __init__(self, span: "Span | None") -> None:
        self._span = span
        self.records = 0
        self.way = ""

    def end(self, error: BaseException | None) -> None:
        """End the span, with the records sent and any error."""
        if self._span is not None:
            self._span.set_attribute(names.MESSAGES, self.records)
            if self.way:
                self._span.set_attribute(names.WAY, self.way)
            if error is not None:
                _fail(self._span, error)
            self._span.end()


@contextlib.contextmanager
def sending(stream: str, task: Task, handed: Handed | None) -> Iterator[Sending]:
    """The span `send STREAM` of a task, current within the block; without tracing there is none.

    Without a tracer here, the driver's context is still made current, so that batches carry it.
    """
    tracer = _worker_tracer()
    if tracer is None and (handed is None or not _has_api()):
        yield Sending(None)
        return
    from opentelemetry import context as contexts
    from opentelemetry.trace import SpanKind, set_span_in_context

    context = _parent(task, handed, tracer)
    span = None
    if tracer is not None:
        attributes = names.on_stream("send", stream)
        attributes |= {names.SPARK_PARTITION: task.partition, names.ATTEMPT: task.attempt}
        span = tracer.start_span(names.span_name("send", stream), context, SpanKind.PRODUCER, attributes)
        context = set_span_in_context(span)
    made, began = Sending(span), perf_counter()
    token = contexts.attach(context)
    failure: BaseException | None = None
    try:
        yield made
    except BaseException as error:
        failure = error
        raise
    finally:
        contexts.detach(token)
        made.end(failure)
        if tracer is not None:
            _took(stream, perf_counter() - began, failure)


def flush_task() -> None:
    """Send the task's spans and metrics, within the time limit of a flush. Raises nothing."""
    try:
        _flush()
    except Exception:  # an SDK that the program set up may raise anything
        _log.warning("a flush failed", exc_info=True)


def _has_api() -> bool:
    try:
        import opentelemetry.trace  # noqa: F401  # the client uses it once it is loaded
    except ImportError:
        return False
    return True


def _worker_tracer() -> Any:
    """The tracer of this worker; a wrong environment is logged once, and does not stop the data."""
    try:
        sdk.start(WORKER, quick=True)
    except ConfigError as error:
        _log.warning("%s", error)
        sdk.give_up()
    return _tracer()


def _parent(task: Task, handed: Handed | None, tracer: Any) -> "Context":
    """The batch's root span: as the driver handed it over, else derived, and sampled as it would be here."""
    if handed is not None:
        return _context(handed)
    if not task.query:
        return _nowhere()
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    trace, flags = trace_id(task.query, task.batch), TraceFlags(TraceFlags.SAMPLED)
    sampler = getattr(tracer, "sampler", None)
    if (
        sampler is not None
        and not sampler.should_sample(_nowhere(), trace, names.batch_name(task.batch)).decision.is_sampled()
    ):
        flags = TraceFlags(TraceFlags.DEFAULT)
    root = SpanContext(trace, root_id(task.query, task.run, task.batch), True, flags)
    return set_span_in_context(NonRecordingSpan(root), _nowhere())


def _took(stream: str, seconds: float, failure: BaseException | None) -> None:
    """Record how long a task's send took; the writer in it counts the records."""
    from opentelemetry import metrics

    attributes: Mapping[str, Any] = names.on_stream("send", stream)
    if failure is not None:
        attributes = {**attributes, names.ERROR: type(failure).__qualname__}
    meter = metrics.get_meter(names.SCOPE)  # the SDK keeps instruments by name: making one again finds it
    meter.create_histogram(
        names.OPERATION_DURATION, "s", "How long sends took",
        explicit_bucket_boundaries_advisory=names.DURATION_BOUNDS,
    ).record(seconds, attributes)  # fmt: skip
