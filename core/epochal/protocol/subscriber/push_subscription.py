"""What one connection is subscribed to on `events`: a channel, an id of its own, and at times the next channel.

Events that are pushed before the history behind them has come wait here.

Sources: rules E26, Q9, F8; docs/protocol.md (Joining a segment).
"""

from epochal.protocol import messages as m
from epochal.protocol.subscriber.channel_change import ChannelChange, channel_prefix, private_prefix
from epochal.protocol.subscriber.effects import FollowerEffect, SubscribePrefix, UnsubscribePrefix
from epochal.protocol.subscriber.event_checks import in_order, size_of


class PushSubscription:
    """Methods return what to subscribe to and what to leave, in order."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_max_backlog",
        "change",
        "channel",
        "last",
        "nonce",
        "snapshot",
        "subscribed",
    )

    def __init__(self, max_backlog: int) -> None:
        self._max_backlog = max_backlog
        self.nonce = b""
        """The subscription id."""
        self.subscribed = False
        """Whether to the id."""
        self.channel: bytes | None = None
        """The prefix of what is pushed on the channel; None before the first join."""
        self.last: int | None = None
        """The last event that came on the channel; None before the first."""
        self.snapshot = m.Snapshot(m.NOTHING_YET, 0, b"", (), (), ())
        """The last one."""
        self.change: ChannelChange | None = None
        """The join of another channel, while this one is followed: only in the state `live`."""
        self._backlog: list[m.Event] = []
        """Events that were pushed while history is pulled."""
        self._backlog_bytes = 0

    # ---- joining and leaving ----

    def renew(self, nonce: bytes) -> list[FollowerEffect]:
        """A join begins under a fresh id. The channel stays: the next welcome may name it again."""
        effects = self.abandon_change()
        if self.subscribed:
            effects.append(UnsubscribePrefix(private_prefix(self.nonce)))
            self.subscribed = False
        self.nonce = nonce
        self.drop_backlog()
        return effects

    def join(self, welcome: m.Welcome) -> list[FollowerEffect]:
        """First the channel, then the id: the snapshot comes when the publisher sees the second."""
        effects: list[FollowerEffect] = []
        if channel_prefix(welcome) != self.channel:
            if self.channel is not None:
                effects.append(UnsubscribePrefix(self.channel))
            self.channel = channel_prefix(welcome)
            self.last = None
            effects.append(SubscribePrefix(self.channel))
        effects.append(SubscribePrefix(private_prefix(self.nonce)))
        self.subscribed = True
        return effects

    def leave(self) -> list[FollowerEffect]:
        """Pushes are not followed any more."""
        effects: list[FollowerEffect] = []
        if self.subscribed:
            effects.append(UnsubscribePrefix(private_prefix(self.nonce)))
            self.nonce = b""  # its snapshot may be on its way, and must not be taken for a second one
        effects += self.abandon_change()
        if self.channel is not None:
            effects.append(UnsubscribePrefix(self.channel))
        self.subscribed = False
        self.channel = None
        self.last = None
        self.drop_backlog()
        return effects

    # ---- another channel ----

    def change_welcomed(self, change: ChannelChange, welcome: m.Welcome) -> list[FollowerEffect]:
        """The publisher has named the new channel, which may be the present one."""
        effects: list[FollowerEffect] = []
        change.channel = channel_prefix(welcome)
        if change.channel != self.channel:
            effects.append(SubscribePrefix(change.channel))
        effects.append(SubscribePrefix(private_prefix(change.nonce)))
        return effects

    def abandon_change(self) -> list[FollowerEffect]:
        """The new channel is not joined after all."""
        effects: list[FollowerEffect] = []
        change, self.change = self.change, None
        if change is not None and change.channel is not None:
            effects.append(UnsubscribePrefix(private_prefix(change.nonce)))
            if change.channel != self.channel:
                effects.append(UnsubscribePrefix(change.channel))
        return effects

    def complete_change(self, change: ChannelChange, snapshot: m.Snapshot) -> list[FollowerEffect]:
        """The new channel is followed from its snapshot on, and what was kept of it becomes the backlog."""
        effects: list[FollowerEffect] = [UnsubscribePrefix(private_prefix(self.nonce))]
        if change.channel != self.channel:
            if self.channel is not None:
                effects.append(UnsubscribePrefix(self.channel))
            self.channel, self.last = change.channel, change.last
        self.nonce, self.change, self.snapshot = change.nonce, None, snapshot
        self._backlog, self._backlog_bytes = change.backlog, change.backlog_bytes
        return effects

    # ---- events ----

    def came(self, event: m.Event) -> None:
        """An event has come on the channel. Raises `RemoteProtocolError` for one that comes out of order."""
        self.last = in_order(event, self.last)

    def keep(self, event: m.Event) -> None:
        """An event waits for the history before it."""
        self._backlog.append(event)
        self._backlog_bytes += size_of(event)
        if self._backlog_bytes > self._max_backlog:
            self.drop_backlog()  # the hole that this leaves is seen and pulled like any other

    def take_backlog(self) -> list[m.Event]:
        """The events that wait, which now follow."""
        backlog = self._backlog
        self.drop_backlog()
        return backlog

    def drop_backlog(self) -> None:
        """Events that wait are not needed any more."""
        self._backlog = []
        self._backlog_bytes = 0
