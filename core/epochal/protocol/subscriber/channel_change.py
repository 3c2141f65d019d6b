"""The way from one channel to another, while the present one is followed. Sources: rules F6, F8."""

from dataclasses import dataclass, field

from epochal.protocol import messages as m
from epochal.protocol.subscriber.event_checks import in_order, size_of
from epochal.protocol.topics.filter import TopicFilter


@dataclass(slots=True)
class ChannelChange:
    """A second join, of the same connection, for `topics`. What comes on its channel waits for its snapshot."""

    request: int
    nonce: bytes
    since: float
    """When it began, in seconds."""
    topics: TopicFilter | None
    channel: bytes | None = None
    """Its prefix; None until the publisher has named it."""
    last: int | None = None
    """The last event on it."""
    backlog: list[m.Event] = field(default_factory=list)
    backlog_bytes: int = 0

    def keep(self, event: m.Event) -> None:
        """An event has come on the new channel. Raises `RemoteProtocolError` for one that comes out of order."""
        self.last = in_order(event, self.last)
        self.backlog.append(event)
        self.backlog_bytes += size_of(event)


def as_prefixes(topics: TopicFilter | None) -> m.Prefixes | None:
    """A filter as a message has it; None for everything, and for what is too much for one message."""
    if topics is None or len(topics) > m.MAX_FILTER_ENTRIES or topics.size > m.MAX_FILTER_BYTES:
        return None
    return topics.prefixes


def channel_prefix(welcome: m.Welcome) -> bytes:
    """What messages on the channel begin with."""
    return b"C" + welcome.channel


def private_prefix(nonce: bytes) -> bytes:
    """What messages for one subscription begin with."""
    return b"P" + nonce
