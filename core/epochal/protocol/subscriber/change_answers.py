"""What a publisher answers to the join of another channel, while the present one is followed.

The old channel is left when the snapshot of the new one says that nothing of the old one is missing. So topics that
were wanted before and after have no hole, and those that are new begin at one known state.

Sources: rules F8, F13; docs/protocol.md (Changing the filter).
"""

from epochal.errors import RelayEnded, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.subscriber.catch_up import PullReason
from epochal.protocol.subscriber.channel_change import ChannelChange, private_prefix
from epochal.protocol.subscriber.effects import Rejoined
from epochal.protocol.subscriber.follower_states import FollowerEvent
from epochal.protocol.subscriber.segment_connection import SegmentConnection, snapshot_state


class ChangeAnswers:
    """Takes the answers to a change of the channel. Raises `RemoteProtocolError` for a wrong one."""

    __slots__ = ("_connection", "_max_backlog")

    def __init__(self, connection: SegmentConnection, max_backlog: int) -> None:
        self._connection = connection
        self._max_backlog = max_backlog

    def welcomed(self, change: ChannelChange, welcome: m.Welcome) -> None:
        """The publisher names the new channel."""
        connection = self._connection
        ended = connection.terms.other_run(welcome)
        if ended is not None:
            connection.stop(FollowerEvent.RUN_ENDED, ended)
            return
        if welcome.version != m.VERSION or welcome.incarnation != connection.terms.incarnation:
            raise RemoteProtocolError("a publisher's version and incarnation stay the same on a connection")
        connection.terms.welcome = welcome
        connection.upstream.welcomed(welcome)
        connection.send(connection.subscription.change_welcomed(change, welcome))

    def take_pushed(self, change: ChannelChange, prefix: bytes, message: m.Message, now: float) -> None:
        """A message on the new channel, or for the new subscription; what has another prefix is of an earlier one."""
        match message:
            case m.Data() | m.Frontier() | m.Aborted() if prefix == change.channel:
                self._connection.checks.event(message)
                change.keep(message)
                if change.backlog_bytes > self._max_backlog:
                    self._connection.greet(FollowerEvent.CHANGE_FAILED, now)
            case m.Snapshot() if prefix == private_prefix(change.nonce):
                self._joined(change, message, now)
            case m.Refused() if prefix == private_prefix(change.nonce):
                self._connection.greet(FollowerEvent.CHANGE_FAILED, now)
            case m.Ended(detail) if prefix == change.channel:
                ended = RelayEnded(f"segment {self._connection.segment}: {detail}")
                self._connection.stop(FollowerEvent.RUN_ENDED, ended)

    def _joined(self, change: ChannelChange, snapshot: m.Snapshot, now: float) -> None:
        """Leave the old channel, if all that was on it has come; what has not is pulled first (F8)."""
        connection, progress = self._connection, self._connection.progress
        if snapshot.incarnation != connection.terms.incarnation or snapshot.subscription != change.nonce:
            raise RemoteProtocolError("the snapshot is not of the incarnation and subscription that were welcomed")
        connection.checks.times(snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)
        if snapshot.seq < progress.last:  # of a relay that is behind: a join of its own asks for the state here
            connection.greet(FollowerEvent.CHANGE_FAILED, now)
            return
        connection.send(connection.subscription.complete_change(change, snapshot))
        connection.terms.newest = max(connection.terms.newest, snapshot.seq)
        progress.forget_passed()  # the new channel may have what the old one had not
        if snapshot.left is None or snapshot.left > progress.last:
            progress.go_on_after(connection.here)
            connection.pull(FollowerEvent.CHANGED_WITH_LOSS, connection.here, PullReason.RESUME, now)
            return
        progress.skip_to(snapshot.seq)
        connection.upstream.begins()
        progress.report(Rejoined(snapshot_state(snapshot), change.topics))
        connection.go_live(FollowerEvent.CHANGED, now)
