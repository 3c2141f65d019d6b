"""The next step of one reader of whole epochs: an outcome of the ring for its filter, or of its own subscription.

    state     | call   | condition                                   | answer    | next state
    ----------+--------+---------------------------------------------+-----------+-----------
    FOLLOWING | `step` | the ring has the next outcome               | TAKE      | FOLLOWING
    FOLLOWING | `step` | the reader has all that the ring has        | WAIT, END | FOLLOWING
    FOLLOWING | `step` | the ring has dropped the next outcome       | ALONE     | ALONE
    ALONE     | `step` |                                             | ALONE     | ALONE
    ALONE     | `look` | a gap was found that was not handed out     | GAP       | ALONE
    ALONE     | `look` | the cursor is at a boundary of the ring     | FOLLOW    | FOLLOWING
    ALONE     | `look` | the subscription has an outcome             | TAKE      | ALONE
    ALONE     | `look` | it has none yet, or none will ever come     | WAIT, END | ALONE

A reader starts FOLLOWING if it begins now, or with a cursor at a boundary of the ring; else ALONE.

Sources: rules E15-E18, F18.
"""

from enum import Enum, auto
from typing import Generic, TypeVar

from epochal.protocol.epochs.ring import EpochRing
from epochal.protocol.subscriber.cursor import Cursor

T = TypeVar("T")

Since = Cursor | str
"""A cursor, or a text that `epochal.protocol.subscriber.since` reads."""


class ReaderStep(Enum):
    """What the shell of a reader does next."""

    TAKE = auto()
    """Hand out the next outcome: of the ring after `step`, of the reader's own subscription after `look`."""
    WAIT = auto()
    """Wait: there is no further outcome yet."""
    END = auto()
    """End: there will never be a further outcome."""
    ALONE = auto()
    """Read a subscription of its own that begins at `since`, and ask `look`."""
    GAP = auto()
    """Hand out the notice of the gap that the reader's own subscription has found."""
    FOLLOW = auto()
    """Close the reader's own subscription, and ask `step`."""


class RingReader(Generic[T]):
    """One reader of a ring. It begins at `since`, or now if that is None; `text` is that cursor as it was sent."""

    def __init__(self, ring: EpochRing[T], since: Since | None, text: str = "") -> None:
        self._ring = ring
        self._number: int | None = None
        """The boundary of the ring at which the reader is, while FOLLOWING; None while ALONE."""
        self._since = since
        if since is None:
            self._number = ring.end
            self._since = ring.newest.cursor
        elif isinstance(since, Cursor):
            self._number = ring.place(since, text)

    @property
    def since(self) -> Since:
        """Where the reader is: after the last outcome that it has."""
        assert self._since is not None, "it is set at the beginning"
        return self._since

    @property
    def alone(self) -> bool:
        """Whether the reader needs a subscription of its own."""
        return self._number is None

    @property
    def current(self) -> bool:
        """Whether the reader has all outcomes up to the frontier that the ring's subscription knows."""
        if self._number is not None:
            return self._number == self._ring.end
        since = self._since
        known = self._ring.newest.last.frontier
        return isinstance(since, Cursor) and not since.unreported_aborts and known.reaches_all(since.frontier)

    @property
    def overtaken(self) -> bool:
        """Whether the ring has dropped the outcome that the reader took last."""
        return self._number is not None and self._number <= self._ring.first

    def step(self) -> ReaderStep:
        """What to do next."""
        ring = self._ring
        if self._number is not None and self._number < ring.first:
            self._number = None
        if self._number is None:
            return ReaderStep.ALONE
        if self._number < ring.end:
            return ReaderStep.TAKE
        self._since = ring.newest.cursor
        return ReaderStep.END if ring.complete else ReaderStep.WAIT

    def take(self) -> T:
        """The next outcome of the ring, when `step` has said TAKE."""
        assert self._number is not None, "the reader follows the ring"
        outcome = self._ring[self._number]
        self._number += 1
        self._since = self._ring.boundary(self._number).cursor
        return outcome

    def look(self, cursor: Cursor, *, gap: bool, item: bool, complete: bool) -> ReaderStep:
        """What to do next while the reader's own subscription is at `cursor`.

        `gap`: the subscription has found a gap whose notice was not handed out. `item`: it has fetched an outcome;
        `cursor` is before that. `complete`: it will never have a further one.
        """
        if gap:
            # First, because the cursor is after the gap already. Where the ring continues from that cursor, it has no
            # notice of this gap (E17).
            return ReaderStep.GAP
        self._since = cursor
        self._number = self._ring.place(cursor)
        if self._number is not None:
            return ReaderStep.FOLLOW
        if item:
            return ReaderStep.TAKE
        return ReaderStep.END if complete else ReaderStep.WAIT

    def took(self, after: Cursor) -> None:
        """An outcome of the reader's own subscription was handed out; the cursor after it is `after`."""
        self._since = after
