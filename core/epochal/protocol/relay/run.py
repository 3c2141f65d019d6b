"""A run: the part of one incarnation of a segment that a relay has, served like a publisher's log.

A run ends where the next event does not follow the events that were sent. The next run has its own channels, so that no
subscriber takes its events for those of the last run (F13). A run also ends when the relay gets another path to the
publisher. Relays that follow this one must learn of the new path, or some might come to feed each other (F16).

Sources: E24, F13, F16.
"""

from typing import Final

from epochal.protocol.log.history import SegmentState
from epochal.protocol.messages import Welcome
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import PublisherEffect
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.server import FEATURES, SegmentServer, ServingSettings
from epochal.protocol.publisher.views import Views
from epochal.protocol.relay.history import RunHistory
from epochal.protocol.times import TimeShape

MAX_GREETED = 65_536
"""A run remembers so many peers that have joined it or asked to."""


class Run:
    """One run of a segment; `server` answers its subscribers, on `channels`.

    `upstream` is the answer to the relay's own hello.
    """

    def __init__(
        self,
        stream: str,
        shape: TimeShape,
        upstream: Welcome,
        path: tuple[str, ...],
        history: RunHistory,
        channels: Channels,
        serving: ServingSettings,
        views: Views,
        now: float,
    ) -> None:
        self.stream: Final = stream
        self.gathering: Final = False
        self.settings: Final = PublisherSettings(shape=shape, max_payload=upstream.max_payload)
        self.path: Final = path
        """The relays from here to the publisher, this one first."""
        self.history = history
        self.channels = channels
        # The publisher answers forwarded requests for history, so the run offers of these features what that offers.
        features = tuple(each for each in FEATURES if each in upstream.features or not each.startswith("since:"))
        self.server = SegmentServer(self, channels, serving, now, features, views=views)
        self.over: str | None = None
        """Why the run has ended; None while it goes on."""
        self._greeted: dict[bytes, None] = {}
        self._effects: list[PublisherEffect] = []

    @property
    def incarnation(self) -> int:
        """The publisher's incarnation."""
        return self.history.incarnation

    @property
    def seq(self) -> int:
        """The event up to which all events of the topics that the relay asked for have come."""
        return self.history.last

    def state(self) -> SegmentState:
        """The state exactly after `seq`, as far as a relay knows it (F14)."""
        return self.history.state()

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect."""
        self._effects.append(effect)

    def take(self) -> list[PublisherEffect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def greeted(self, peer: bytes) -> None:
        """Remember that a peer has said hello to this run."""
        self._greeted.pop(peer, None)
        self._greeted[peer] = None
        if len(self._greeted) > MAX_GREETED:
            del self._greeted[next(iter(self._greeted))]

    def knows(self, peer: bytes) -> bool:
        """Whether the peer has said hello to this run, and so knows the incarnation of the answers."""
        return peer in self._greeted
