"""The publisher's metrics, in a registry of its own.

Names, units and the exporter are here. The numbers are plain counters that are read only when someone collects them, so
the hot path pays nothing.
"""

from collections.abc import Callable, Iterable
from time import monotonic

from opentelemetry.metrics import CallbackOptions, Observation

from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.segment import HostedSegment

Read = Callable[[HostedSegment], float]

COMMIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds; a fast disk syncs in one millisecond, a slow one in hundreds."""

_COUNTED: tuple[tuple[str, str, str, Read], ...] = (
    ("events", "{event}", "Events logged so far; with storage, by all incarnations", lambda s: s.publisher.seq + 1),
    ("appends", "{append}", "Appends acknowledged", lambda s: s.counters.appends),
    ("records", "{record}", "Records logged", lambda s: s.publisher.records),
    (
        "meta.ignored",
        "{field}",
        "Optional fields of batches, such as trace and key, that were not as the protocol has them",
        lambda s: s.publisher.ignored_meta,
    ),
    ("acks", "{message}", "Acknowledgements sent; one can cover many appends", lambda s: s.counters.acks),
    ("pushed.messages", "{message}", "Messages pushed live", lambda s: s.counters.pushed_messages),
    (
        "pushed.size",
        "By",
        "Bytes pushed live, whatever the number of subscribers",
        lambda s: s.counters.pushed_bytes,
    ),
    ("unsent.events", "{event}", "Events without a subscriber", lambda s: s.counters.unsent_events),
    ("joins", "{join}", "Subscriptions to a segment", lambda s: s.counters.joins),
    (
        "coarse.joins",
        "{join}",
        "Subscriptions sent more than they want from the start, because channels are used up",
        lambda s: s.counters.coarse_joins,
    ),
    ("since.truncated", "{answer}", "Questions for history that is gone", lambda s: s.counters.truncated_answers),
    ("since.corrupt", "{answer}", "Questions for history that is damaged", lambda s: s.counters.corrupt_answers),
)
_SHOWN: tuple[tuple[str, str, str, Read], ...] = (
    ("subscribers", "{subscriber}", "Open subscriptions", lambda s: len(s.server.subscriptions)),
    ("channels", "{channel}", "Filters with a channel of their own", lambda s: len(s.channels)),
    (
        "coarse",
        "{subscriber}",
        "Subscriptions sent more than they want, because channels are used up",
        lambda s: s.server.coarse,
    ),
    ("writers", "{writer}", "Writers that hold a capability", lambda s: len(s.publisher.writers)),
    ("history.size", "By", "Bytes of history in memory", lambda s: s.publisher.history.bytes),
    ("history.events", "{event}", "Events in history", lambda s: s.publisher.seq - s.publisher.history.truncated_at),
    ("since.answers", "{answer}", "Answers with history under way", lambda s: s.server.answering),
    ("log.first", "{event}", "The first retained event", lambda s: s.publisher.history.first + 1),
    ("log.size", "By", "Bytes of log files", lambda s: 0 if s.store is None else s.store.log.size),
    (
        "log.full",
        "1",
        "Whether appends wait for space on disk",
        lambda s: s.store is not None and s.store.full is not None,
    ),
    (
        "horizon.waiting",
        "By",
        "Bytes of appends that wait until the catalog has recorded their times (streams without storage)",
        lambda s: s.publisher.waiting_bytes,
    ),
    (
        "memory.lost",
        "1",
        "Whether epochs that may still arrive are aborted because the publisher before lost its memory",
        lambda s: len(s.publisher.progress.below) > 0,
    ),
    ("incarnation", "{incarnation}", "The incarnation served", lambda s: s.publisher.incarnation),
    ("frontier.age", "s", "Time since the lower frontier moved", lambda s: monotonic() - s.frontier_since),
)


class PublisherTelemetry(ServiceTelemetry):
    """Exports the numbers of `publisher` whenever metrics are read."""

    def __init__(self, publisher: PublisherProcess) -> None:
        super().__init__("publisher")
        self._publisher = publisher
        meter = self.meter
        for name, unit, text, read in _COUNTED:
            meter.create_observable_counter(f"epochal.publisher.{name}", [self._each(read)], unit, text)
        for name, unit, text, read in _SHOWN:
            meter.create_observable_gauge(f"epochal.publisher.{name}", [self._each(read)], unit, text)
        for name in publisher.counters.snapshot():
            observed = self._counted(name)
            meter.create_observable_counter(f"epochal.publisher.{name.replace('_', '.')}", [observed])
        meter.create_observable_counter(
            "epochal.publisher.refusals", [self._refusals], "{message}", "Messages refused, by socket and reason"
        )
        meter.create_observable_counter(
            "epochal.publisher.webhook.ends", [self._webhook_ends], "{webhook}", "Web-hooks that are over, by why"
        )
        commits = meter.create_histogram(
            "epochal.publisher.commit.duration", "s", "How long a group commit took on the disk",
            explicit_bucket_boundaries_advisory=COMMIT_BOUNDS,
        )  # fmt: skip
        publisher.on_commit = commits.record
        meter.create_observable_gauge(
            "epochal.publisher.discarded.peers", [self._discarded], "{peer}", "Peers that broke the protocol"
        )
        meter.create_observable_gauge(
            "epochal.publisher.held", [self._held], "s", "How long a segment's longest holder has held time back"
        )

    def _each(self, read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            stream = self._publisher.settings.stream
            for segment, served in self._publisher.segments.items():
                yield Observation(read(served), {"stream": stream, "segment": segment})

        return observed

    def _counted(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            yield Observation(getattr(self._publisher.counters, name))

        return observed

    def _refusals(self, _options: CallbackOptions) -> Iterable[Observation]:
        for (socket, code), count in self._publisher.counters.refusals.items():
            yield Observation(count, {"socket": socket, "code": code})

    def _webhook_ends(self, _options: CallbackOptions) -> Iterable[Observation]:
        for why, count in self._publisher.counters.webhook_ends.items():
            yield Observation(count, {"reason": why})

    def _discarded(self, _options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(sum(map(len, self._publisher.discarded)))

    def _held(self, _options: CallbackOptions) -> Iterable[Observation]:
        stream = self._publisher.settings.stream
        for segment, served in self._publisher.segments.items():
            for holder in served.publisher.holders(monotonic())[:1]:
                who = {"stream": stream, "segment": segment, "kind": str(holder.kind), "writer": holder.writer or ""}
                yield Observation(holder.seconds, who)
