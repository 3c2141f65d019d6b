"""The catalog's metrics, in a registry of its own.

Apart from the service because names and units are one concern.
"""

from epochal.service.telemetry import ServiceTelemetry
from epochal_catalog.state import State
from epochal_catalog.waiting import WaitingRoom


class Telemetry(ServiceTelemetry):
    """Counts what happens and shows what is."""

    def __init__(self) -> None:
        super().__init__("catalog")
        self._lapsed = self.meter.create_counter(
            "epochal.catalog.leases.lapsed", unit="{lease}", description="Leases that were not renewed in time"
        )
        self._failed = self.meter.create_counter(
            "epochal.catalog.store.failures", unit="{write}", description="Writes that the database did not take"
        )

    def observe(self, state: State, room: WaitingRoom) -> None:
        """Show sizes of the state whenever metrics are read."""
        self.gauge("epochal.catalog.streams", "{stream}", "Declared streams", lambda: len(list(state.streams())))
        self.gauge("epochal.catalog.publishers", "{publisher}", "Registrations", lambda: len(state.registrations))
        self.gauge("epochal.catalog.waiters", "{lookup}", "Lookups that wait", lambda: len(room))
        self.gauge("epochal.catalog.revision", "{change}", "Stored changes so far", lambda: state.revision)

    def lapsed(self, count: int) -> None:
        """Leases lapsed."""
        if count:
            self._lapsed.add(count)

    def store_failed(self) -> None:
        """A write failed; nothing was changed."""
        self._failed.add(1)
