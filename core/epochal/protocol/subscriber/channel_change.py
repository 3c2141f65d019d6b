"""A change from one channel to another, and the prefixes on `events`. Sources: rules F6, F8."""

from dataclasses import dataclass, field

from epochal.protocol import messages as m
from epochal.protocol.subscriber.event_checks import in_order, size_of
from epochal.protocol.topics.filter import TopicFilter


@dataclass(slots=True)
class ChannelChange:
    """A second join on the same connection, for `topics`. Events on its channel wait for its snapshot."""

    request: int
    nonce: bytes
    since: float
    """When it began, in seconds."""
    topics: TopicFilter | None
    channel: bytes | None = None
    """Its prefix; None until the publisher has named it."""
    last: int | None = None
    """The last event that came on it; None before the first."""
    backlog: list[m.Event] = field(default_factory=list)
    backlog_bytes: int = 0

    def keep(self, event: m.Event) -> None:
        """An event has come on the new channel. Raises `RemoteProtocolError` for one that comes out of order."""
        self.last = in_order(event, self.last)
        self.backlog.append(event)
        self.backlog_bytes += size_of(event)


def as_prefixes(topics: TopicFilter | None) -> m.Prefixes | None:
    """A filter as a message has it; None for everything, and for a filter that is too long for one message."""
    if topics is None or len(topics) > m.MAX_FILTER_ENTRIES or topics.size > m.MAX_FILTER_BYTES:
        return None
    return topics.prefixes


def channel_prefix(welcome: m.Welcome) -> bytes:
    """The prefix of messages on the channel."""
    return b"C" + welcome.channel


def private_prefix(nonce: bytes) -> bytes:
    """The prefix of messages for one subscription."""
    return b"P" + nonce
