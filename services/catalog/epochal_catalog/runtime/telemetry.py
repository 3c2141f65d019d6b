"""The catalog's metrics, in a registry of its own."""

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation

from epochal.protocol.blockers import HolderKind
from epochal.service.telemetry import ServiceTelemetry
from epochal_catalog.domain.blockers import held_back
from epochal_catalog.domain.kind import Memory
from epochal_catalog.domain.kinds import NOUNS
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS
from epochal_catalog.domain.noun import Noun
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS
from epochal_catalog.runtime.lookups import LookupWaiters
from epochal_catalog.runtime.watchers import Watchers


class CatalogTelemetry(ServiceTelemetry):
    """Counters of events, and gauges of the present state."""

    def __init__(self) -> None:
        super().__init__("catalog")
        self._lapsed = self.meter.create_counter(
            "epochal.catalog.leases.lapsed", unit="{lease}", description="Leases that were not renewed in time"
        )
        self._failed = self.meter.create_counter(
            "epochal.catalog.store.failures", unit="{write}", description="Writes that the database did not take"
        )

        self._cut = self.meter.create_counter(
            "epochal.catalog.watchers.cut", unit="{watcher}", description="Watchers that did not read"
        )

    def observe(self, state: CatalogState, room: LookupWaiters, watchers: Watchers, now: Callable[[], float]) -> None:
        """Export sizes of the state whenever metrics are read."""
        for noun in NOUNS:
            self._observe_count(noun, state[noun.kind])
        self.gauge("epochal.catalog.watchers", "{watcher}", "Watchers", lambda: len(watchers))
        self.gauge("epochal.catalog.waiters", "{lookup}", "Lookups that wait", lambda: len(room))
        self.gauge("epochal.catalog.revision", "{change}", "Number of the newest change", lambda: state.revision)

        def held(_options: CallbackOptions) -> Iterable[Observation]:
            return _held(state, now())

        self.meter.create_observable_gauge(
            "epochal.stream.held", [held], unit="s", description="How long the least time of a stream has been held"
        )

        def lost(_options: CallbackOptions) -> Iterable[Observation]:
            return _lost(state, now())

        self.meter.create_observable_gauge(
            "epochal.stream.writers.lost", [lost], unit="{writer}", description="Lost writers that a stream waits for"
        )

        for counter, unit, what in (
            (
                "waiting_seconds",
                "s",
                "How long something waits for the program of the slowest reader, by its last report",
            ),
            ("waiting_epochs", "{epoch}", "Complete epochs that wait for the program of the slowest reader"),
        ):
            self._observe_readers(state, counter, unit, what)

    def _observe_count(self, noun: Noun, memory: Memory[Any]) -> None:
        if noun.gauge:
            name = f"epochal.catalog.{noun.kind.name}s"
            self.gauge(name, f"{{{noun.kind.name}}}", noun.gauge, lambda: len(memory))

    def _observe_readers(self, state: CatalogState, counter: str, unit: str, what: str) -> None:
        def waiting(_options: CallbackOptions) -> Iterable[Observation]:
            return _most_of(state, counter)

        name = "epochal.stream.readers." + counter.replace("_", ".")
        self.meter.create_observable_gauge(name, [waiting], unit=unit, description=what)

    def watcher_cut(self) -> None:
        """A watcher was cut."""
        self._cut.add(1)

    def lapsed(self, count: int) -> None:
        """Leases lapsed."""
        if count:
            self._lapsed.add(count)

    def store_failed(self) -> None:
        """A write failed; nothing was changed."""
        self._failed.add(1)


def _held(state: CatalogState, now: float) -> Iterable[Observation]:
    """The longest holder of each stream that is not complete."""
    for entry in state[STREAMS]:
        for longest in held_back(state, entry, now)[:1]:
            labels = {"namespace": entry.record.namespace, "name": entry.record.name}
            who = {"segment": longest.segment, "writer": longest.writer or ""}
            yield Observation(longest.seconds or 0.0, {**labels, **who})


def _lost(state: CatalogState, now: float) -> Iterable[Observation]:
    """How many lost writers each stream waits for, if it has `whenLost: hold` (E46 hold) or waits for one."""
    for entry in state[STREAMS]:
        writers = {held.writer for held in held_back(state, entry, now) if held.kind == HolderKind.LOST}
        if writers or entry.manifest.spec.progress.when_lost == "hold":
            yield Observation(len(writers), {"namespace": entry.record.namespace, "name": entry.record.name})


def _most_of(state: CatalogState, counter: str) -> Iterable[Observation]:
    """The greatest value of one counter among the live readers of each stream that has any."""
    subscribers = state[SUBSCRIPTIONS]
    for entry in state[STREAMS]:
        live = [key for key in subscribers.of(entry.record.uid) if subscribers.live(key) is not None]
        reports = [report for key in live if (report := subscribers.report(key)) is not None]
        if reports:
            most = max(report.counters.get(counter, 0.0) for report in reports)
            yield Observation(most, {"namespace": entry.record.namespace, "name": entry.record.name})
