"""A subscription as the shell of the machines needs it: one item in the hand, and the cursors before and after it.

Separate from the feeds because a reader who catches up has such a subscription of his own.
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
"""Makes a subscription, not entered yet, by topics (None: all), rejected topics, and where to begin (None: now)."""

SMALL = 16 * 1024
"""Bytes of payload that are encoded at once: a thread would take longer."""


class Source:
    """Reads a subscription, once it is open."""

    def __init__(self, subscription: Subscription, encoder: EpochEncoder, one_at_a_time: asyncio.Lock) -> None:
        self._subscription = subscription
        self._reading = subscription.epochs()
        self._encoder = encoder
        self._one_at_a_time = one_at_a_time
        self._hand: Hand[Epoch | EpochAborted] | None = None
        self._gaps: deque[Outcome] = deque()
        self.complete = False
        """Whether nothing can come any more."""
        self.sending = 0
        """Bytes of an outcome that is being sent to the only reader."""

    @property
    def held_bytes(self) -> int:
        """Bytes of epochs that it holds."""
        return self._subscription.held_bytes + self.sending

    async def ready(self) -> None:
        """Wait until all segments have answered. Raises why the subscription failed."""
        await self._subscription.ready.wait()
        self._subscription.frontier()

    def cursor(self) -> Cursor:
        """Where it stands: before the item in the hand."""
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
        """The item in the hand, encoded, and the cursor after it."""
        hand = self._hand
        assert hand is not None, "there is an item in the hand"
        bodies = await self._encode(hand.item)
        self._hand = None
        hand.state = GIVEN
        after = self._subscription.cursor()
        return Outcome.behind(Kind.EPOCH if isinstance(hand.item, Epoch) else Kind.ABORTED, bodies, after), after

    async def _encode(self, item: Epoch | EpochAborted) -> tuple[bytes, ...]:
        """On a thread if it is large, and one at a time: memory and processor are for others, too."""
        if not isinstance(item, Epoch) or sum(len(batch.payload) for batch in item.batches) <= SMALL:
            return self._encoder.bodies(item)
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._encoder.bodies, item)
