"""A queue of spans between a program and its collector: only one thread waits for the collector, and never a task.

The SDK's own processor is not used because its flush has no limit, and because it starts a thread in every forked
child: PySpark forks for its JVM and for each worker. Here a thread starts with the first span of a process, a flush
has a time limit, and after a failure nothing is tried for a while. So a collector that is away costs each process one
flush, and not each task one.

    state of the collector   next
    unknown, well            a send that fails, or a flush that runs out of time -> resting
    resting                  after REST seconds the next send -> well, or resting again
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple, Protocol

from opentelemetry.context import Context, attach, detach, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from epochal.otel.spans import Finished

FLUSH = 2.0
"""Seconds that a flush waits."""
REST = 30.0
"""Seconds after a failure in which nothing is tried."""

_log = logging.getLogger("epochal.otel")
_SUPPRESSED = "suppress_instrumentation"  # HTTP clients' instrumentations look for it: our sends are not traced


class SendLimits(NamedTuple):
    """Spans in memory, spans in one send, and seconds between sends: OTEL_BSP_*; seconds between metrics."""

    queue: int = 2048
    batch: int = 512
    delay: float = 5.0
    metrics: float = 60.0


USUAL = SendLimits()


class Sent(NamedTuple):
    """What became of a send; `reason` for people where it failed, `again` whether the same can succeed later."""

    well: bool
    reason: str = ""
    again: bool = False


class Destination(Protocol):
    """Where spans and metrics go; called by one thread, blocks."""

    def spans(self, spans: Sequence[ReadableSpan | Finished]) -> Sent:
        """Send spans."""
        ...

    def metrics(self) -> Sent:
        """Collect and send metrics, if they are sent at all."""
        ...


class Sender(SpanProcessor):
    """Queues sampled spans that have ended and sends them in the background. `dropped` counts those never sent."""

    def __init__(
        self,
        destination: Destination,
        limits: SendLimits = USUAL,
        *,
        rest: float = REST,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._destination = destination
        self._limits = limits
        self._rest = rest
        self._clock = clock
        self.dropped = 0
        self._begin()

    def _begin(self) -> None:
        """Begin with an empty queue in this process: after a fork, the parent sends what was queued before."""
        self._pid = os.getpid()
        self._queue: deque[ReadableSpan | Finished] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._answered = 0
        self._rests_until = float("-inf")
        self._failing = self._closing = False
        self._metrics_due = self._clock() + self._limits.metrics

    def _here(self) -> None:
        if self._pid != os.getpid():  # forked: the thread runs only in the parent, and the lock may be taken for ever
            self.dropped = 0
            self._begin()

    # ---- what the SDK calls ----

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is kept of a span that has not ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; when the queue is full, it is dropped and counted."""
        if span.context is not None and span.context.trace_flags.sampled:
            self.add(span)

    def add(self, span: ReadableSpan | Finished) -> None:
        """The same for any span that is to be sent, without looking at its flags."""
        self._here()
        if len(self._queue) >= self._limits.queue or self._closing:
            self.dropped += 1
            return
        self._queue.append(span)
        if self._thread is None or len(self._queue) >= self._limits.batch:
            self._wake()

    def force_flush(self, timeout_millis: int = int(FLUSH * 1000)) -> bool:
        """As `flush`."""
        return self.flush(timeout_millis / 1000)

    def shutdown(self, limit: float = FLUSH) -> None:
        """Flush for at most `limit` seconds, and send nothing more."""
        self._here()
        self.flush(limit)
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    # ---- the program's side ----

    def begin(self) -> None:
        """Begin to send metrics, without waiting for a span."""
        self._here()
        self._wake()

    def flush(self, limit: float = FLUSH) -> bool:
        """Send what there is, metrics too, waiting at most `limit` seconds; returns whether all is sent.

        Raises nothing. While the collector rests, nothing is tried.
        """
        self._here()
        if self._closing or self._resting:
            return False
        with self._changed:
            self._asked = asked = self._asked + 1
            self._start_thread()
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._answered >= asked, limit)
        if not in_time:
            self._rests_until = self._clock() + self._rest
            self._say(f"no answer within {limit:g} s")
        return in_time and not self._resting

    @property
    def _resting(self) -> bool:
        return self._clock() < self._rests_until

    def _wake(self) -> None:
        with self._changed:
            self._start_thread()
            self._changed.notify_all()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="epochal telemetry", daemon=True)
            self._thread.start()

    # ---- the thread ----

    # A flush takes the next number and waits until it is answered. The number is read before the sends, so a flush that
    # comes while they are under way is answered only by the next turn, which sends what was queued before that flush.
    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                if not self._must_hurry():
                    self._changed.wait(self._limits.delay)
                asked = self._asked
            if asked > self._answered or not self._resting:
                self._send_all(flush=asked > self._answered)
            with self._changed:
                self._answered = max(self._answered, asked)
                self._changed.notify_all()

    def _must_hurry(self) -> bool:
        full = len(self._queue) >= self._limits.batch and not self._resting
        return self._closing or self._asked > self._answered or full

    def _send_all(self, *, flush: bool) -> None:
        token = attach(set_value(_SUPPRESSED, True))
        try:
            while self._queue and self._send_some():
                pass
            if flush or self._clock() >= self._metrics_due:
                self._metrics_due = self._clock() + self._limits.metrics
                if not self._resting:
                    self._outcome(self._destination.metrics())
        except Exception as error:  # a fault of an exporter must not end the thread
            self._outcome(Sent(False, repr(error)))
        finally:
            detach(token)

    def _send_some(self) -> bool:
        """Send one batch; returns whether to go on. What can be sent later stays at the head of the queue."""
        count = min(len(self._queue), self._limits.batch)
        spans = [self._queue.popleft() for _ in range(count)]
        try:
            sent = self._destination.spans(spans)
        except Exception as error:  # sent again, it could fail for ever
            sent = Sent(False, repr(error))
        if not sent.well and sent.again:
            self._queue.extendleft(reversed(spans))
        elif not sent.well:
            self.dropped += count
        self._outcome(sent)
        return sent.well

    def _outcome(self, sent: Sent) -> None:
        if sent.well:
            if self._failing:
                _log.info("the collector takes traces and metrics again")
            self._failing = False
            return
        self._rests_until = self._clock() + self._rest
        self._say(sent.reason)

    def _say(self, reason: str) -> None:
        """Log a failure once, however long it lasts: a flush and the thread may notice it at the same moment."""
        with self._changed:
            known, self._failing = self._failing, True
        if not known:
            _log.warning("traces and metrics are not sent: %s; trying again every %g s", reason, self._rest)
