"""What a publisher answers to a join: a `Welcome` on `requests`, then a `Snapshot` or a refusal for the id alone.

Sources: rules S8, E14; F6, F11, F13; docs/protocol.md (Joining a segment).
"""

from epochal.errors import RemoteProtocolError, from_code
from epochal.protocol import messages as m
from epochal.protocol.subscriber.follower_states import FollowerEvent, FollowerState
from epochal.protocol.subscriber.segment_connection import SegmentConnection, snapshot_state
from epochal.protocol.subscriber.since import From


class JoinAnswers:
    """Takes the answers to a join, and makes the connection go on. Raises `RemoteProtocolError` for a wrong one."""

    __slots__ = ("_connection",)

    def __init__(self, connection: SegmentConnection) -> None:
        self._connection = connection

    def welcomed(self, welcome: m.Welcome, now: float) -> None:
        """The publisher has answered the hello: pull, name the filter, or join the channel."""
        connection = self._connection
        refused = connection.terms.refuse(welcome, has_begun=connection.progress.has_begun)
        if refused is not None:
            connection.stop(*refused)
            return
        connection.terms.accept(welcome)
        connection.progress.forget_passed()
        connection.liveness.expect_heartbeats(welcome.heartbeat)
        connection.upstream.welcomed(welcome)
        if not connection.pushes:
            connection.pull_from_begin(FollowerEvent.WELCOMED_TO_PULL, now)
        elif connection.upstream.asks_nothing:
            connection.enter(FollowerEvent.WELCOMED_TO_NAME, now)
            connection.name_filter(now)
        else:
            connection.send(connection.subscription.join(welcome))
            connection.enter(FollowerEvent.WELCOMED_TO_JOIN, now)

    def take_private(self, message: m.Message, now: float) -> None:
        """A message for the subscription id alone."""
        joins = self._connection.state is FollowerState.JOINING
        match message:
            case m.Snapshot() if joins:
                self._joined(message, now)
            case m.Refused():
                if joins:  # later it answers another client, which has seen our id on `P`
                    self._connection.stop(FollowerEvent.REFUSED, from_code(message.code, message.detail))
            case _:
                raise not_pushed_here(message)

    def _joined(self, snapshot: m.Snapshot, now: float) -> None:
        connection = self._connection
        incarnation, progress = connection.terms.incarnation, connection.progress
        if snapshot.incarnation != incarnation or snapshot.subscription != connection.subscription.nonce:
            raise RemoteProtocolError("the snapshot is not of the incarnation and subscription that were welcomed")
        connection.checks.times(snapshot.lower, snapshot.upper, snapshot.aborted, snapshot.below)
        connection.subscription.snapshot = snapshot
        connection.terms.newest = snapshot.seq
        begin = progress.begin
        if begin is From.LIVE:
            connection.start_from_snapshot(FollowerEvent.JOINED, gap=False, now=now)
        elif isinstance(begin, m.Position) and progress.continuing and begin == (snapshot.incarnation, snapshot.seq):
            progress.last = begin.seq
            connection.report_began(snapshot_state(snapshot), filters=False, resumed=True)
            connection.go_live(FollowerEvent.JOINED, now)
        else:
            connection.pull_from_begin(FollowerEvent.JOINED_AHEAD, now)


def not_pushed_here(message: m.Message) -> RemoteProtocolError:
    """The error of a message that does not belong to where it was pushed."""
    if isinstance(message, m.Snapshot):
        return RemoteProtocolError("a snapshot comes once, first, and for one subscription (S8)")
    return RemoteProtocolError(f"a publisher does not push {type(message).__name__} here")
