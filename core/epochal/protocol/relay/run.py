"""A run: what a relay has of one incarnation of a segment, served like a publisher's log.

It ends where what comes next does not follow what was sent. The next one has channels of its own, so that nobody takes
its events for those of the last (F13). It also ends where the relay has another way to the publisher: relays that
follow it must learn of that, or some might come to feed each other (F16).

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
"""Peers of a run that are known to have joined it, or to have asked to."""


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
        # What is passed on is answered as the publisher can.
        features = tuple(each for each in FEATURES if each in upstream.features or not each.startswith("since:"))
        self.server = SegmentServer(self, channels, serving, now, features, views=views)
        self.over: str | None = None
        """Why it has ended."""
        self._greeted: dict[bytes, None] = {}
        self._effects: list[PublisherEffect] = []

    @property
    def incarnation(self) -> int:
        """The publisher's."""
        return self.history.incarnation

    @property
    def seq(self) -> int:
        """All events up to this one have come, of those that the relay has asked for."""
        return self.history.last

    def state(self) -> SegmentState:
        """The state exactly after `seq`, as far as a relay can tell (F14)."""
        return self.history.state()

    def emit(self, effect: PublisherEffect) -> None:
        """Queue an effect."""
        self._effects.append(effect)

    def take(self) -> list[PublisherEffect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def greeted(self, peer: bytes) -> None:
        """A peer says hello to this run."""
        self._greeted.pop(peer, None)
        self._greeted[peer] = None
        if len(self._greeted) > MAX_GREETED:
            del self._greeted[next(iter(self._greeted))]

    def knows(self, peer: bytes) -> bool:
        """Whether the peer has said hello to this run, and so knows of which incarnation the answers are."""
        return peer in self._greeted
