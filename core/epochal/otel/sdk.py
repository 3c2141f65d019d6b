"""Sets up the SDK for our programs: from the environment, for this process, and never in place of the program's own.

The SDK is set up only where an endpoint is named: by services at their start, by the command line, in Spark's driver,
and in each of its workers when a task first needs it. The variables are checked together before anything is sent: the
SDK, which is not always installed, silently replaces some wrong values by others.
"""

import concurrent.futures.thread  # noqa: F401  # before the SDK, or a child forked with both waits for ever
import functools
import math
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from epochal.errors import ConfigError, Problem
from epochal.otel import names

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from epochal.otel.span_processor import Sender, SendLimits
    from epochal.otel.spans import Finished


PROTOCOL = "http/protobuf"
_SIGNALS = ("TRACES", "METRICS")


@dataclass(frozen=True, slots=True)
class Exports:
    """Where traces and metrics go; None: nowhere."""

    traces: str | None
    metrics: str | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """The settings of OTLP from the environment; without an endpoint nothing is sent.

        Raises `ConfigError` with every variable that cannot be used.
        """
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(None, None)
        wanted = {signal: _endpoint(signal, environ) for signal in _SIGNALS}
        problems = list(dict.fromkeys(problem for signal in _SIGNALS for problem in _problems(signal, environ)))
        if problems:
            raise ConfigError("traces and metrics cannot be sent as the environment asks", problems)
        return cls(wanted["TRACES"], wanted["METRICS"])

    def __bool__(self) -> bool:
        return self.traces is not None or self.metrics is not None


def _exporter(signal: str, environ: Mapping[str, str]) -> str:
    return environ.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"


def _named(signal: str, what: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable that sets `what` for this signal, and its value: the signal's own variable, else the common one."""
    own = f"OTEL_EXPORTER_OTLP_{signal}_{what}"
    name = own if environ.get(own, "").strip() else f"OTEL_EXPORTER_OTLP_{what}"
    return name, environ.get(name, "").strip()


def _endpoint(signal: str, environ: Mapping[str, str]) -> str | None:
    """The address to which one signal is sent, as the exporter will use it."""
    name, value = _named(signal, "ENDPOINT", environ)
    if not value or _exporter(signal, environ) == "none":
        return None
    return value if signal in name else f"{value.rstrip('/')}/v1/{signal.lower()}"


def _problems(signal: str, environ: Mapping[str, str]) -> Iterator[Problem]:
    name, value = _named(signal, "ENDPOINT", environ)
    exporter = _exporter(signal, environ)
    if not value or exporter == "none":
        return
    if exporter != "otlp":
        yield Problem(f"OTEL_{signal}_EXPORTER", f"{exporter!r} cannot be used here", "write otlp or none")
    if not _is_url(value):
        yield Problem(name, f"{value!r} is no address of a collector", "write http://HOST:4318, or https")
    name, value = _named(signal, "PROTOCOL", environ)
    if value not in ("", PROTOCOL):
        yield Problem(
            name, f"{value!r} is not spoken here", f"write {PROTOCOL}, and the collector's port for it, mostly 4318"
        )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


TIMEOUT = 2.0
"""Seconds that the end of a task or process waits for a send, its retries included, unless its user sets others."""

MOST_PATIENCE = 60.0
"""The most of them: elsewhere the same variable is in milliseconds, and 10000 must not hold a task for hours."""

_current: "Sdk | None" = None
_tried = 0
"""The process in which `start` last finished, or in which `give_up` was called."""


class Sdk:
    """The providers that we have set in this process, and their sender. None: the program's own one, or not wanted.

    `patience`: seconds for which `flush` waits.
    """

    def __init__(
        self,
        tracers: "TracerProvider | None",
        meters: "MeterProvider | None",
        sender: "Sender | None",
        *,
        takes_finished: bool = False,
        patience: float = TIMEOUT,
    ) -> None:
        self.tracers = tracers
        self.meters = meters
        self.sender = sender
        self.takes_finished = takes_finished
        self.patience = patience

    @property
    def dropped(self) -> int:
        """Spans that were never sent."""
        return 0 if self.sender is None else self.sender.dropped

    def flush(self) -> bool:
        """Send what has ended, waiting at most `patience` seconds; returns whether all is sent. Raises nothing."""
        return True if self.sender is None else self.sender.flush(self.patience)

    def close(self) -> None:
        """Flush and send nothing more."""
        if self.sender is not None:
            self.sender.shutdown(self.patience)


def start(
    service: str, *, metrics: bool = True, quick: bool = False, environ: Mapping[str, str] | None = None
) -> Sdk | None:
    """Set up what the environment requests; None if that is nothing: then no package is loaded.

    A second call changes nothing. `service`: its name unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES give
    another. `metrics`: whether they are pushed too. `quick`: this process must end tasks in time, so no send may take
    longer than a flush. Providers that the program has set itself are left as they are, and used. Raises `ConfigError`
    for variables that cannot be used.
    """
    global _current, _tried
    if _current is not None or _tried == os.getpid():
        return _current
    given = os.environ if environ is None else environ
    exports = Exports.read(given)
    if exports:
        _current = _made(service, exports, given, metrics=metrics, quick=quick)
    _tried = os.getpid()
    return _current


def current() -> Sdk | None:
    """What `start` has set up in this process, or in one that it was forked from."""
    return _current


def give_up() -> None:
    """Try no more in this process."""
    global _tried
    _tried = os.getpid()


def provider() -> Any:
    """The global tracer provider, ours or the program's; None where none is set, or the API is not loaded."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace as trace_api

    found = trace_api.get_tracer_provider()
    return None if _unset(found) else found


def finished() -> "Callable[[Finished], None] | None":
    """A function that takes a finished span of this process; None where no spans are sent."""
    found = provider()
    if found is None:
        return None
    from epochal.otel.spans import by_sdk, follows_parents

    ours = _current if _current is not None and _current.tracers is found else None
    if ours is not None and ours.sender is not None and ours.takes_finished and follows_parents(found.sampler):
        return ours.sender.add
    return functools.partial(by_sdk, found.get_tracer(names.SCOPE))


def flush_others(limit: float) -> None:
    """Flush a provider that the program itself has set, waiting at most `limit` seconds."""
    found = provider()
    if found is None or (_current is not None and found is _current.tracers) or not hasattr(found, "force_flush"):
        return
    # The SDK's own flush ignores its limit, so it runs in a thread that we do not wait for any longer.
    waiting = threading.Thread(target=found.force_flush, args=(int(limit * 1000),), daemon=True)
    waiting.start()
    waiting.join(limit)


def _made(service: str, exports: Exports, environ: Mapping[str, str], *, metrics: bool, quick: bool) -> Sdk:
    try:
        from epochal.otel.destination import Collector
    except ImportError as error:
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        problem = Problem(name, f"needs a package that is not there: {error}", "install epochal[tracing], or unset it")
        raise ConfigError("traces and metrics cannot be sent", [problem]) from None
    from opentelemetry import metrics as metrics_api
    from opentelemetry import trace as trace_api
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from epochal.otel.span_processor import Sender

    described = resource(service)
    traces = exports.traces if _unset(trace_api.get_tracer_provider()) else None
    pushed = exports.metrics if metrics and _unset(metrics_api.get_meter_provider()) else None
    patience = send_patience(environ)
    collector = Collector(traces, pushed, patience if quick else None, described)
    sender = Sender(collector, limits(environ))
    tracers = meters = None
    if traces is not None:
        tracers = TracerProvider(resource=described, shutdown_on_exit=False)
        tracers.add_span_processor(sender)
        trace_api.set_tracer_provider(tracers)
    if collector.reader is not None:
        meters = MeterProvider(metric_readers=[collector.reader], resource=described, shutdown_on_exit=False)
        metrics_api.set_meter_provider(meters)
        _count_dropped(meters, sender)
        sender.begin()
    return Sdk(tracers, meters, sender, takes_finished=collector.takes_finished, patience=patience)


def send_patience(environ: Mapping[str, str]) -> float:
    """Seconds that the end of a task or process waits for a send: OTEL_EXPORTER_OTLP_TIMEOUT, where it is set.

    Where the signals have different ones, the longest; at most `MOST_PATIENCE`.
    """
    longest = max(_number(environ, _named(signal, "TIMEOUT", environ)[0], TIMEOUT) for signal in _SIGNALS)
    return min(longest, MOST_PATIENCE)


def _unset(provider: Any) -> bool:
    """Whether no provider is set: then the API gives a placeholder of its own."""
    return type(provider).__name__.startswith(("Proxy", "_Proxy", "NoOp"))


def _count_dropped(meters: "MeterProvider", sender: "Sender") -> None:
    from opentelemetry.metrics import Observation

    meters.get_meter(names.SCOPE).create_observable_counter(
        names.SPANS_DROPPED, [lambda _: [Observation(sender.dropped)]], "{span}", "Spans that were never sent"
    )


def resource(service: str) -> "Resource":
    """Who this process is; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = Resource.create({
        "service.name": service,
        "service.version": version("epochal"),
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    })  # fmt: skip
    return ours.merge(OTELResourceDetector().detect())


def limits(environ: Mapping[str, str]) -> "SendLimits":
    """The variables OTEL_BSP_* and OTEL_METRIC_EXPORT_INTERVAL; a value that is no number above 0 is ignored."""
    from epochal.otel.span_processor import USUAL, SendLimits

    usual = USUAL
    return SendLimits(
        int(_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", usual.queue)),
        int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual.batch)),
        _number(environ, "OTEL_BSP_SCHEDULE_DELAY", usual.delay * 1000) / 1000,
        _number(environ, "OTEL_METRIC_EXPORT_INTERVAL", usual.metrics * 1000) / 1000,
    )


def _number(environ: Mapping[str, str], name: str, usual: float) -> float:
    try:
        value = float(environ.get(name, ""))
    except ValueError:
        return usual
    return value if 0 < value < math.inf else usual
