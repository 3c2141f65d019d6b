"""What OpenTelemetry's environment variables request, checked together before anything is sent.

Separate from the SDK, which silently replaces some wrong values by others, and is not always installed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from epochal.errors import ConfigError, Problem

PROTOCOL = "http/protobuf"
_SIGNALS = ("TRACES", "METRICS")


@dataclass(frozen=True, slots=True)
class Exports:
    """Where traces and metrics go; None: nowhere."""

    traces: str | None
    metrics: str | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """What is to be sent by OTLP: nothing unless an endpoint is named.

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
