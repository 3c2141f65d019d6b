"""What the publisher's `Welcome` says: who answers, which events it has, and what it can leave out.

A `Welcome` is judged by what earlier ones on the same connection said, whatever the follower does with it.

Sources: rules E12, F13, F16; docs/protocol.md (Relays).
"""

from epochal.errors import EpochalError, RelayEnded, RemoteProtocolError, TimedOut, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.subscriber.follower_states import FollowerEvent


class PublisherTerms:
    """The last `Welcome` of one connection. `relay` is the id of the relay that the connection feeds, if it does."""

    __slots__ = (
        "_least_incarnation",
        "_relay",
        "_segment",
        "filters_history",
        "incarnation",
        "newest",
        "skips_history",
        "welcome",
    )

    def __init__(self, segment: str, least_incarnation: int, relay: str | None) -> None:
        self._segment = segment
        self._relay = relay
        self._least_incarnation = least_incarnation
        """The highest incarnation seen before (E12 fencing)."""
        self.welcome: m.Welcome | None = None
        self.incarnation = 0
        self.newest = m.NOTHING_YET
        """The last event that the publisher has named in a welcome or a snapshot."""
        self.filters_history = False
        """Whether the publisher leaves topics that are not wanted out of a history."""
        self.skips_history = False
        """Whether it leaves epochs that are not wanted out at the start of a history; otherwise all is requested."""

    @property
    def relayed(self) -> bool:
        """Whether a relay has answered."""
        return self.welcome is not None and bool(self.welcome.path)

    def refuse(self, welcome: m.Welcome, *, has_begun: bool) -> tuple[FollowerEvent, EpochalError] | None:
        """Why a connection with this welcome is over; None if it can go on. Raises `RemoteProtocolError`.

        `has_begun`: events of the last incarnation were reported on this connection.
        """
        if welcome.version != m.VERSION:
            raise RemoteProtocolError(f"the publisher chose protocol version {welcome.version}, which was not offered")
        if welcome.incarnation < self._least_incarnation:
            stale = f"segment {self._segment}: a stale publisher answered (incarnation {welcome.incarnation})"
            return FollowerEvent.UNFIT, TimedOut(stale)
        if has_begun and (ended := self.other_run(welcome)) is not None:
            return FollowerEvent.RUN_ENDED, ended
        if self._relay is not None and (self._relay in welcome.path or len(welcome.path) >= m.MAX_RELAYS):
            way = _way_too_long(welcome.path, self._relay)
            return FollowerEvent.UNFIT, Unavailable(f"segment {self._segment}: {way}")
        return None

    def other_run(self, welcome: m.Welcome) -> EpochalError | None:
        """A relay may come to follow another incarnation. What this connection has is of the last one: it is over."""
        if welcome.incarnation == self.incarnation or not welcome.path:
            return None
        return RelayEnded(f"segment {self._segment}: the relay follows another incarnation now")

    def accept(self, welcome: m.Welcome) -> None:
        """The connection goes on with this welcome."""
        self.welcome = welcome
        self.incarnation = self._least_incarnation = welcome.incarnation
        self.newest = welcome.seq
        self.skips_history = m.SINCE_TIMES in welcome.features
        self.filters_history = m.SINCE_FILTER in welcome.features


def _way_too_long(path: tuple[str, ...], relay: str) -> str:
    """Why a relay cannot follow a server with this way to the publisher."""
    way = " -> ".join(path)
    if relay in path:
        return f"the relay would follow itself: {way}; change the upstream of one of them"
    return f"at most {m.MAX_RELAYS} relays may follow each other, and there are {len(path)} already: {way}"
