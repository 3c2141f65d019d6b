"""Metrics of what writers send, in a program that has set OpenTelemetry's metrics up.

In any other program a writer only checks once, when it opens, that there is no meter provider.
"""

import asyncio
import functools
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Self

from epochal.otel import names


class Sends:
    """Counts the records of one writer, and times its appends that are awaited."""

    def __init__(self, stream: str, meter: Any) -> None:
        self._attributes = names.on_stream("send", stream)
        # The SDK keeps instruments by name: the next writer finds the same ones.
        self._messages = meter.create_counter(names.SENT_MESSAGES, "{message}", "Records sent")
        self._duration = meter.create_histogram(
            names.OPERATION_DURATION, "s", "How long sends took",
            explicit_bucket_boundaries_advisory=names.DURATION_BOUNDS,
        )  # fmt: skip

    @classmethod
    def of(cls, stream: str) -> Self | None:
        """None where no meter provider is set, or OpenTelemetry's API is not loaded."""
        api: Any = sys.modules.get("opentelemetry.metrics")
        if api is None:
            return None
        provider = api.get_meter_provider()
        if type(provider).__name__.startswith(("_Proxy", "NoOp")):
            return None
        return cls(stream, provider.get_meter(names.SCOPE))

    def sent(self, records: int) -> None:
        """Count records that were appended."""
        self._messages.add(records, self._attributes)

    def awaited(self, records: int, promise: "asyncio.Future[Any]") -> None:
        """Count records that were appended; `promise` resolves when they are acknowledged, or fails with them."""
        self._messages.add(records, self._attributes)
        promise.add_done_callback(self._timer(perf_counter()))

    def _timer(self, began: float) -> "Callable[[asyncio.Future[Any]], None]":
        def done(promise: "asyncio.Future[Any]") -> None:
            attributes = self._attributes
            if promise.cancelled():
                return
            error = promise.exception()
            if error is not None:
                attributes = {**attributes, names.ERROR: getattr(error, "code", type(error).__qualname__)}
            self._duration.record(perf_counter() - began, attributes)

        return done


def fell_back() -> None:
    """Count a writer that publishes without the sidecar that the environment names."""
    if "opentelemetry.metrics" in sys.modules:
        _fallbacks().add(1)


@functools.cache
def _fallbacks() -> Any:
    from opentelemetry import metrics

    return metrics.get_meter(names.SCOPE).create_counter(
        names.SIDECAR_FALLBACKS, "{writer}", "Writers that did without the sidecar that is named"
    )
