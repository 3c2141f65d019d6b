"""The channels of a segment: one for each filter that its subscribers have, each with its own sequence.

A batch goes to the channels whose filters want its topic, all other events go to every channel (N21). On each, `prev`
is the last event of that channel, so that a loss is seen there whatever the filter leaves out (E14).

Sources: rules F6, F7, F12; S21.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from epochal.protocol import messages as m
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter
from epochal.protocol.topics.merged import MergedFilters
from epochal.protocol.wire import Frames, Packer, data_around_prev

MAX_CHANNELS = 64
"""Most channels of one segment. Every frontier change and abort is encoded once for each channel."""
MAX_KNOWN_TOPICS = 4096
"""For how many topics it is remembered which channels want them."""


@dataclass(slots=True, eq=False)
class Channel:
    """The subscribers of one filter. Messages on the channel begin with `C<token>`."""

    token: bytes
    filter: TopicFilter
    number: int
    """Its bit among the channels."""
    packer: Packer
    began: int
    """Bytes of batches that the segment had pushed before this channel was made."""
    last: int = m.NOTHING_YET
    """The last event on it."""
    sent: int = 0
    """Bytes of batches on it."""
    subscribed: bool = False
    """Whether anyone subscribes to it. While no one does, events are not even encoded for it (S21)."""
    joining: set[bytes] = field(default_factory=set)
    """Nonces of joins that were given this channel and have not subscribed yet."""


class Channels:
    """All channels of one segment. The channel for everything always exists.

    Once there are `most` channels, a join gets the one that covers its filter and carries least (F12). `last`: the last
    event that the segment had pushed before.
    """

    def __init__(
        self, fresh_token: Callable[[], bytes], *, most: int = MAX_CHANNELS, last: int = m.NOTHING_YET
    ) -> None:
        self._fresh_token = fresh_token
        self._most = most
        self._merged = MergedFilters()
        self._by_filter: dict[TopicFilter, Channel] = {}
        self._by_token: dict[bytes, Channel] = {}
        self._listening: tuple[Channel, ...] = ()
        """The channels with subscribers."""
        self._known: dict[bytes, tuple[Channel, ...]] = {}
        """Topic -> the channels with subscribers that want it."""
        self._last = last
        """The last event that was pushed, or that no channel wanted."""
        self._pushed = 0
        """Bytes of batches pushed on any channel, each batch once."""
        self.everything = self._open(EVERYTHING)

    def __len__(self) -> int:
        return len(self._by_token)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._by_token.values())

    @property
    def subscribed(self) -> bool:
        """Whether any channel has a subscriber."""
        return bool(self._listening)

    # ---- joining ----

    def join(self, nonce: bytes, wanted: TopicFilter) -> Channel:
        """The channel for the join with `nonce`; the channel's filter is `wanted`, or covers it."""
        channel = self._by_filter.get(wanted)
        if channel is None:
            channel = self._open(wanted) if len(self._by_token) < self._most else self._cheapest(wanted)
        channel.joining.add(nonce)
        return channel

    def joined(self, nonce: bytes, channel: Channel) -> None:
        """The subscription of `nonce` has arrived, or is no longer expected."""
        channel.joining.discard(nonce)
        self._close_if_unused(channel)

    def hears(self, token: bytes, heard: bool) -> bool:
        """XPUB reports that `C<token>` has subscribers, or no longer has any; False for an unknown token."""
        channel = self._by_token.get(token)
        if channel is None:
            return False
        if channel.subscribed != heard:
            channel.subscribed = heard
            channel.last = self._last  # a subscriber that joins has a snapshot of this event or a later one
            self._changed()
            self._close_if_unused(channel)
        return True

    def _open(self, wanted: TopicFilter) -> Channel:
        taken = {channel.number for channel in self._by_token.values()}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        token = self._fresh_token()
        channel = Channel(token, wanted, number, Packer(b"C" + token), self._pushed)
        self._by_filter[wanted] = self._by_token[token] = channel
        self._merged.put(number, wanted)
        return channel

    def _cheapest(self, wanted: TopicFilter) -> Channel:
        """Among the channels that cover a filter, the one with the smallest share of the segment's bytes."""
        covering = (channel for channel in self._by_token.values() if channel.filter.covers(wanted))
        return min(covering, key=lambda channel: (self.share(channel), channel is self.everything))

    def share(self, channel: Channel) -> float:
        """The share of the segment's pushed bytes, since the channel was made, that were sent on it: 0 to 1."""
        return channel.sent / max(self._pushed - channel.began, 1)

    def _close_if_unused(self, channel: Channel) -> None:
        if channel.subscribed or channel.joining or channel is self.everything:
            return
        del self._by_filter[channel.filter], self._by_token[channel.token]
        self._merged.remove(channel.number, channel.filter)
        self._changed()

    def _changed(self) -> None:
        self._listening = tuple(channel for channel in self._by_token.values() if channel.subscribed)
        self._known.clear()

    # ---- pushing ----

    def push(self, message: m.Event | m.Heartbeat) -> bool:
        """Gather one event, or the heartbeats, for all channels that want it; False if none does (S21).

        Raises `LocalProtocolError` for an event that does not fit the protocol. It is then sent on no channel, and the
        next event names it in `prev`, so that subscribers see that it is missing.
        """
        self._last = message.seq
        if type(message) is m.Data:
            return self._push_data(message)
        if isinstance(message, m.Heartbeat):
            for channel in self._listening:
                is_last = channel.last == message.seq
                channel.packer.add(message if is_last else m.Heartbeat(channel.last, message.seq))
            return True
        for channel, prev in self._named_on(self._listening, message.seq):
            channel.packer.add(message if prev == message.prev else message._replace(prev=prev))
        return bool(self._listening)

    @staticmethod
    def _named_on(channels: tuple[Channel, ...], seq: int) -> list[tuple[Channel, int]]:
        """Note event `seq` as the last one of these channels; returns each with its previous last event."""
        before = [(channel, channel.last) for channel in channels]
        for channel in channels:
            channel.last = seq
        return before

    def _push_data(self, data: m.Data) -> bool:
        receivers = self._known.get(data.topic)
        if receivers is None:
            receivers = self._receivers(data.topic)
        size = len(data.payload)
        self._pushed += size
        if not receivers:
            return False
        if len(receivers) == 1:
            (channel,) = receivers
            prev, channel.last = channel.last, data.seq
            channel.packer.add(data if prev == data.prev else data._replace(prev=prev))
            channel.sent += size
            return True
        before = self._named_on(receivers, data.seq)
        around = data_around_prev(data)
        for channel, prev in before:
            channel.packer.add_data(around, prev, data.payload)
            channel.sent += size
        return True

    def _receivers(self, topic: bytes) -> tuple[Channel, ...]:
        wanting = self._merged.wanting(topic)
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        receivers = tuple(channel for channel in self._listening if wanting >> channel.number & 1)
        self._known[topic] = receivers
        return receivers

    def left(self, message: m.Message, replaced: bytes | None) -> m.Message:
        """A message for one subscription; to a snapshot it adds the last event on the channel that is left (F8).

        Events before it may still wait to be pushed when the snapshot is made, so this is known only when it is sent.
        """
        before = None if replaced is None else self._by_token.get(replaced)
        if before is None or type(message) is not m.Snapshot:
            return message
        return message._replace(left=before.last)

    def end(self, detail: str) -> None:
        """Notify all subscribers that nothing more is sent (F13)."""
        for channel in self._listening:
            channel.packer.add(m.Ended(detail))

    def flush(self) -> list[Frames]:
        """The zmq messages gathered for all channels since the last flush, in order for each channel."""
        if len(self._listening) == 1:
            return self._listening[0].packer.flush()
        return [frames for channel in self._listening for frames in channel.packer.flush()]
