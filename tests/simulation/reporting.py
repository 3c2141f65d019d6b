"""What the publisher of a segment reports to the catalog in one life; requests are slow, late and lost on the way.

This is the simulated counterpart of the lease.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from tests.simulation.catalog import Catalog
from tests.simulation.liveness import Liveness
from tests.simulation.scenario import Scenario
from tests.simulation.world import Act, World

from epochal.protocol.publisher.effects import ReportFinishing
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.times import Time

REPORT = 0.8
"""How often the state of a segment is reported."""
REPORT_TIMEOUT = 1.0
"""Seconds after which a report without an answer is made again; it may still get there."""
RETRY = 0.3


class Host(Protocol):
    """What the process of a publisher does for it."""

    @property
    def alive(self) -> bool:
        """Whether this life goes on."""
        ...

    def when_running(self, act: Act) -> None:
        """Do something, in this life, once the process runs; then carry out what comes of it."""
        ...


class Reporting:
    """The reports of one incarnation. `published_lower` says which frontier readers know."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        catalog: Catalog,
        publisher: SegmentPublisher,
        liveness: Liveness,
        host: Host,
        published_lower: Callable[[], Iterable[Time]],
    ) -> None:
        self._world, self._scenario, self._catalog = world, scenario, catalog
        self._publisher, self._segment, self._incarnation = publisher, publisher.segment, publisher.incarnation
        self._liveness, self._host, self._published_lower = liveness, host, published_lower
        self._reported = world.now
        self._asked = self._under_way = 0
        """Requests are numbered; of a publisher without a log one is under way at a time."""
        self.horizon: tuple[Time, ...] = ()
        """What the catalog has recorded, as far as the publisher knows."""
        self.draining = False
        """Whether the process stops: an append that became active now would be missing in the last record."""

    def begin(self) -> None:
        """Of a publisher with a log, say at once that what is recorded of the last life says nothing of this one."""
        if self._scenario.durable:
            self._report()

    def tick(self) -> None:
        """Report when it is due."""
        if self._world.now - self._reported < REPORT:
            return
        self._reported = self._world.now
        if self._scenario.durable:
            self._report()
        else:
            self.record()

    def _report(self) -> None:
        if not self._catalog.away:
            lower = tuple(sorted(self._published_lower()))
            if self._catalog.report(self._segment, self._incarnation, lower, tuple(self._publisher.writers)):
                self._host.when_running(self._publisher.completed)

    # ---- records (E11) ----

    def _way(self) -> float:
        """How long a message to the catalog takes, or its answer."""
        slow = not self._world.calm and self._world.chance(self._scenario.slow_reports)
        longest = REPORT_TIMEOUT * 2 if slow else min(self._scenario.longest_delay, REPORT_TIMEOUT / 4)
        return self._scenario.record_trip / 2 + self._world.between(0.0005, longest)

    def record(self) -> None:
        """Have the catalog store a record, which may take long, or get there after the next one."""
        if self._under_way:
            return
        world, record = self._world, self._publisher.record()
        if record is None:
            return  # it does not know yet what is to be recorded
        self._asked += 1
        request = self._under_way = self._asked
        process = self._catalog.restored

        def arrives() -> None:
            if self._catalog.away or self._catalog.restored != process:
                return
            stored = self._catalog.store(self._segment, self._incarnation, record)
            complete = self._catalog.complete
            if world.calm or not world.chance(0.05):
                world.after(self._way(), lambda: self._host.when_running(lambda: answer(stored, complete)))

        def answer(stored: int, complete: bool) -> None:
            if self._under_way != request:
                return
            self._under_way = 0
            if not self.draining:
                if stored == record.number:
                    self.horizon = record.horizon
                self._publisher.recorded(stored, world.now)
                if stored == record.number:
                    self._liveness.recorded(record.lower, world.now)
            if complete:
                self._publisher.completed()

        def given_up() -> None:
            if self._host.alive and self._under_way == request:
                self._under_way = 0
                self.record()

        world.after(self._way(), arrives)
        world.after(REPORT_TIMEOUT, given_up)

    # ---- finishing (E7) ----

    def finishing(self, report: ReportFinishing) -> None:
        """Send the report until the catalog has answered it."""
        world, catalog = self._world, self._catalog
        process = catalog.restored

        def answered(complete: bool) -> None:
            self._publisher.finishing_answered(report.number, complete, world.now)

        def arrives() -> None:
            if catalog.restored != process:
                return  # this publisher ended with it
            if catalog.away:
                world.after(RETRY, arrives)
                return
            complete = catalog.finish(self._segment, self._incarnation, report.number, report.finishing)
            world.note(f"catalog: segment {self._segment} finishing={report.finishing}, complete={complete}")
            world.after(world.between(0.001, 0.3), lambda: self._host.when_running(lambda: answered(complete)))

        world.after(world.between(0.001, 0.3), arrives)
