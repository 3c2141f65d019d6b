"""The relay's metrics, in a registry of its own; the numbers are read only when metrics are collected."""

from collections.abc import Callable, Iterable
from time import monotonic

from opentelemetry.metrics import CallbackOptions, Observation

from epochal.service.telemetry import ServiceTelemetry
from epochal_publisher.relay.process import RelayProcess
from epochal_publisher.relay.segment import HostedRelaySegment

Read = Callable[[HostedRelaySegment], float | None]


def _subscribers(hosted: HostedRelaySegment) -> int:
    return 0 if hosted.served is None else len(hosted.served.server.subscriptions)


def _coarse(hosted: HostedRelaySegment) -> int:
    return 0 if hosted.served is None else hosted.served.server.coarse


def _answers(hosted: HostedRelaySegment) -> int:
    return 0 if hosted.served is None else hosted.served.server.answering


def _channels(hosted: HostedRelaySegment) -> int:
    return 0 if hosted.served is None else len(hosted.served.channels)


def _memory(hosted: HostedRelaySegment) -> int:
    return 0 if hosted.served is None else hosted.served.run.history.bytes


_COUNTED: tuple[tuple[str, str, str, Read], ...] = (
    ("received.size", "By", "Bytes of batches that came from upstream", lambda s: s.received_bytes),
    ("pushed.messages", "{message}", "Messages pushed live", lambda s: s.counters.pushed_messages),
    ("pushed.size", "By", "Bytes pushed live, whatever the number of subscribers", lambda s: s.counters.pushed_bytes),
    ("joins", "{join}", "Subscriptions to a segment", lambda s: s.counters.joins),
    ("runs", "{run}", "Runs that have begun; all but the first ended another one", lambda s: s.runs),
)
_SHOWN: tuple[tuple[str, str, str, Read], ...] = (
    ("subscribers", "{subscriber}", "Open subscriptions", _subscribers),
    ("channels", "{channel}", "Filters with a channel of their own", _channels),
    ("coarse", "{subscriber}", "Subscriptions sent more than they want, because channels are used up", _coarse),
    ("memory.size", "By", "Bytes of events in memory", _memory),
    ("since.answers", "{answer}", "Answers with history under way, from memory", _answers),
    ("since.passed", "{answer}", "Answers with history that are passed on", lambda s: s.machine.passed_on),
    ("filter.entries", "{prefix}", "Prefixes of topics in the filter upstream", lambda s: len(s.machine.wanted)),
    ("connected", "1", "Whether the segment is followed", lambda s: s.machine.alive),
    ("lag", "s", "Time since all was passed on that upstream had said", lambda s: s.lag(monotonic())),
)


class RelayTelemetry(ServiceTelemetry):
    """Exports the numbers of `relay` whenever metrics are read."""

    def __init__(self, relay: RelayProcess) -> None:
        super().__init__("relay")
        self._relay = relay
        for name, unit, text, read in _COUNTED:
            self.meter.create_observable_counter(f"epochal.relay.{name}", [self._each(read)], unit, text)
        for name, unit, text, read in _SHOWN:
            self.meter.create_observable_gauge(f"epochal.relay.{name}", [self._each(read)], unit, text)
        self.meter.create_observable_counter(
            "epochal.relay.refusals", [self._refusals], "{message}", "Messages refused, by socket and reason"
        )
        self.meter.create_observable_gauge(
            "epochal.relay.discarded.peers", [self._discarded], "{peer}", "Peers that broke the protocol"
        )

    def _each(self, read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            stream = self._relay.settings.stream
            for segment, hosted in self._relay.segments.items():
                value = read(hosted)
                if value is not None:
                    yield Observation(value, {"stream": stream, "segment": segment})

        return observed

    def _refusals(self, _options: CallbackOptions) -> Iterable[Observation]:
        for (socket, code), count in self._relay.counters.refusals.items():
            yield Observation(count, {"socket": socket, "code": code})

    def _discarded(self, _options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(len(self._relay.discarded))
