"""What a reader of whole epochs is given next: from the ring that all of his filter share, or from his own cursor on.

A machine without I/O for each reader:

    state      | event                                          | next state
    -----------+------------------------------------------------+-----------
    ALONE      | his subscription hands an outcome out: `given` | ALONE
    ALONE      | he stands at a boundary of the ring: `at`      | FOLLOWING
    FOLLOWING  | the ring has the next outcome: `take`          | FOLLOWING
    FOLLOWING  | the ring has dropped it: `step`                | ALONE

Sources: rules E15-E18, F18.
"""

from enum import Enum, auto
from typing import Generic, TypeVar

from epochal.protocol.subscriber.cursor import Cursor
from epochal_publisher.relay.epochs.ring import Ring

T = TypeVar("T")

Since = Cursor | str
"""A cursor, or a text as `epochal.protocol.subscriber.since` has them."""


class Step(Enum):
    """What a reader does next."""

    TAKE = auto()
    """Take the next outcome from the ring."""
    WAIT = auto()
    """Wait: he has all that the ring has."""
    END = auto()
    """Nothing follows any more."""
    ALONE = auto()
    """Read a subscription of his own, from `since` on."""


class Reader(Generic[T]):
    """One reader of a ring. `since`: None begins now; `text`: the cursor `since` as he sent it."""

    def __init__(self, ring: Ring[T], since: Since | None, text: str = "") -> None:
        self._ring = ring
        self._number: int | None = None
        """The boundary of the ring where he stands; None while he is alone."""
        self._since = since
        if since is None:
            self._number = ring.end
            self._since = ring.newest.cursor
        elif isinstance(since, Cursor):
            self._number = ring.place(since, text)

    @property
    def since(self) -> Since:
        """Where he goes on if the ring does not have what he needs."""
        assert self._since is not None, "it is set when he begins"
        return self._since

    @property
    def alone(self) -> bool:
        """Whether he needs a subscription of his own."""
        return self._number is None

    @property
    def current(self) -> bool:
        """Whether he has all that is complete, as far as the ring's subscription knows."""
        if self._number is not None:
            return self._number == self._ring.end
        since = self._since
        known = self._ring.newest.last.frontier
        return isinstance(since, Cursor) and not since.unreported_aborts and known.reaches_all(since.frontier)

    @property
    def overtaken(self) -> bool:
        """Whether the ring has dropped what he took last."""
        return self._number is not None and self._number <= self._ring.first

    def step(self) -> Step:
        """What he does next."""
        ring = self._ring
        if self._number is not None and self._number < ring.first:
            self._number = None
        if self._number is None:
            return Step.ALONE
        if self._number < ring.end:
            return Step.TAKE
        self._since = ring.newest.cursor
        return Step.END if ring.complete else Step.WAIT

    def take(self) -> T:
        """The next outcome of the ring, for `Step.TAKE`."""
        assert self._number is not None, "he follows the ring"
        outcome = self._ring[self._number]
        self._number += 1
        self._since = self._ring.boundary(self._number).cursor
        return outcome

    def given(self, after: Cursor) -> None:
        """His own subscription handed an outcome out, and stands at `after` now."""
        self._since = after

    def at(self, cursor: Cursor) -> bool:
        """His own subscription stands at `cursor`; returns whether he follows the ring from there on."""
        self._since = cursor
        self._number = self._ring.place(cursor)
        return self._number is not None
