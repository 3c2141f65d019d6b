"""A subscription that holds one fetched item, with the cursors before and after it.

Each feed reads one, and so does each reader that catches up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from epochal.client.subscriber.delivery import GIVEN, GIVEN_UP, OVER, Hand
from epochal.client.subscriber.subscriber import Subscription
from epochal.client.subscriber.values import Epoch, EpochAborted
from epochal.protocol.epochs.reader import Since
from epochal.protocol.subscriber.cursor import Cursor
from epochal_publisher.relay.epochs.encoding import EpochEncoder, Kind, Outcome

OpenSubscription = Callable[[Sequence[bytes] | None, Sequence[bytes], Since | None], Subscription]
"""Makes a subscription that is not entered yet, from topics (None: all), rejected topics and `since` (None: now)."""

SMALL = 16 * 1024
"""Up to so many bytes of payload are encoded on the event loop, because a thread would take longer."""


class Source:
    """Reads an open subscription. Of all sources that share the lock, one encodes a large epoch at a time."""

    def __init__(self, subscription: Subscription, encoder: EpochEncoder, one_at_a_time: asyncio.Lock) -> None:
        self._subscription = subscription
        self._reading = subscription.epochs()
        self._encoder = encoder
        self._one_at_a_time = one_at_a_time
        self._hand: Hand[Epoch | EpochAborted] | None = None
        self._gaps: deque[Outcome] = deque()
        self.complete = False
        """Whether the stream is complete and all items were fetched."""
        self.sending = 0
        """Bytes of an item while it is encoded; where the subscription is of one reader, also while it is sent."""

    @property
    def held_bytes(self) -> int:
        """Bytes of epochs that the subscription holds, with those being sent."""
        return self._subscription.held_bytes + self.sending

    async def ready(self) -> None:
        """Wait until all segments have answered. Raises the error that has ended the subscription."""
        await self._subscription.ready.wait()
        self._subscription.frontier()

    def cursor(self) -> Cursor:
        """The cursor before the fetched item."""
        return self._subscription.cursor()

    @property
    def has_gap(self) -> bool:
        """Whether a gap was found that was not taken yet."""
        self._gaps += [Outcome(Kind.GAP, self._encoder.bodies(gap)) for gap in self._subscription.gaps()]
        return bool(self._gaps)

    @property
    def has_item(self) -> bool:
        """Whether an item was fetched that was not taken yet."""
        return self._hand is not None

    def gap(self) -> Outcome:
        """Take the oldest gap, when `has_gap`."""
        return self._gaps.popleft()

    async def fetch(self, seconds: float) -> None:
        """Wait for an item, or for the end of the stream. Raises as a read of `epochs()`."""
        if self._hand is not None:
            return
        hand: Hand[Epoch | EpochAborted] = Hand()
        try:
            async with asyncio.timeout(seconds):
                await self._reading.fill(hand)
        except BaseException as error:
            hand.state = GIVEN_UP
            if isinstance(error, TimeoutError):
                return
            raise
        if hand.state == OVER:
            self.complete = True
        else:
            self._hand = hand

    async def take(self) -> tuple[Outcome, Cursor]:
        """The fetched item, encoded, and the cursor after it."""
        hand = self._hand
        assert hand is not None, "there is a fetched item"
        item, self._hand, hand.state = hand.item, None, GIVEN
        # Read before the encoding: a gap that is found meanwhile has its notice after the item (E17).
        after = self._subscription.cursor()
        self.sending = _payload_bytes(item)
        try:
            bodies = await self._encode(item)
        finally:
            self.sending = 0
        return Outcome.behind(Kind.EPOCH if isinstance(item, Epoch) else Kind.ABORTED, bodies, after), after

    async def _encode(self, item: Epoch | EpochAborted) -> tuple[bytes, ...]:
        """Encode a large item on a thread, one at a time, to leave memory and processor to others."""
        if _payload_bytes(item) <= SMALL:
            return self._encoder.bodies(item)
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._encoder.bodies, item)


def _payload_bytes(item: Epoch | EpochAborted) -> int:
    return sum(len(batch.payload) for batch in item.batches) if isinstance(item, Epoch) else 0
