"""The capability that a publisher holds itself, so that no time completes before all awaited writers are there.

It is the only capability without a writer. A publisher holds it for a new segment, after the last writer has left, and
while it waits for the writers that an earlier incarnation knew.

Sources: rules E3, E5, E7, E11.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from epochal.protocol.blockers import MOST_HOLDERS, Holder, HolderKind
from epochal.protocol.frontier import Antichain, Change
from epochal.protocol.publisher.journal import PublisherIs
from epochal.protocol.times import Time


@dataclass(slots=True)
class ReservedCapability:
    """The publisher's own capability, and the writers that it waits for; empty while only writers hold capabilities."""

    held: Antichain
    since: float
    """When it was taken, in seconds of the publisher's clock."""
    min_writers: int
    awaited: set[str]
    """Writers that had the segment open when the last incarnation ended, and have not come back (E11 horizon)."""
    opened: set[str]
    """Writers that have opened; counted only until there are enough (E5)."""
    enough: bool
    """Whether at least `min_writers` have opened, so that epochs may complete (E5)."""
    closed: Antichain = field(default_factory=Antichain)
    """The capability of the writer that closed last. A last holder that is lost leaves no less (E3 lost writers)."""

    @classmethod
    def at(
        cls,
        start: Iterable[Time],
        known: Collection[str],
        min_writers: int,
        now: float,
        *,
        opened: Iterable[str],
        enough: bool,
        closed: Iterable[Time],
    ) -> Self:
        """For an incarnation without a log: the `known` writers are awaited; they and the `opened` ones are counted."""
        parked = cls(Antichain(start), now, min_writers, set(known), {*known, *opened}, enough, Antichain(closed))
        parked._count()
        return parked

    @classmethod
    def restored(cls, note: PublisherIs, min_writers: int, now: float) -> Self:
        """As the log recorded it."""
        return cls(
            Antichain(note.held), now, min_writers, set(note.awaited), set(note.opened), note.enough_writers,
            Antichain(note.closed),
        )  # fmt: skip

    @property
    def may_go(self) -> bool:
        """Whether the own capability can go once a writer has one: something is held, and no writer is awaited."""
        return len(self.held) > 0 and self.enough and not self.awaited

    def came(self, writer: str) -> None:
        """A writer has received its capability."""
        self.awaited.discard(writer)
        self.opened.add(writer)
        self._count()

    def _count(self) -> None:
        self.enough = self.enough or len(self.opened) >= self.min_writers
        if self.enough:
            self.opened.clear()  # there are enough for ever: no one is counted any more

    def park(self, held: Antichain, now: float) -> list[Change]:
        """Hold what the last writer held; returns the changes of the lower frontier's counts."""
        self.held = Antichain(held)
        self.since = now
        return [(time, 1) for time in held]

    def catch_up(self) -> list[Change]:
        """All awaited writers are lost, and they were the last holders: hold what such a loss leaves (E3 lost writers).

        Returns the changes of the lower frontier's counts.
        """
        held, self.held = self.held, self.left_by(self.held)
        return [(time, 1) for time in self.held] + [(time, -1) for time in held]

    def left_by(self, lost: Antichain) -> Antichain:
        """What remains when the last holder is lost and held `lost`: as if it had left before the last writer closed.

        >>> own = ReservedCapability(Antichain(), 0.0, 1, set(), set(), True, closed=Antichain([(0, 12)]))
        >>> own.left_by(Antichain([(3, 0)])), own.left_by(Antichain([(0, 20)]))
        (Antichain([(3, 12)]), Antichain([(0, 20)]))
        """
        return lost.join(self.closed) if len(self.closed) else lost

    def closed_past(self, frontier: Antichain) -> tuple[Time, ...]:
        """`closed`, or nothing once `frontier` has passed it: a frontier never goes back, so it no longer matters."""
        return () if self.closed.reaches_all(frontier) else tuple(self.closed)

    def release(self) -> list[Change]:
        """Hold nothing; returns the changes of the lower frontier's counts."""
        held, self.held = self.held, Antichain()
        return [(time, -1) for time in held]

    def holders(self, now: float, *, finishing: bool, overdue: bool) -> list[Holder]:
        """Each time that the publisher holds, with the reason. `overdue`: awaited writers count as lost (E46 hold)."""
        return [Holder(time, kind, writer, now - self.since, None)
                for time in self.held for kind, writer in self._why(finishing, overdue)]  # fmt: skip

    def _why(self, finishing: bool, overdue: bool) -> list[tuple[HolderKind, str | None]]:
        if self.awaited:
            kind = HolderKind.LOST if overdue else HolderKind.RETURNING
            return [(kind, writer) for writer in sorted(self.awaited)[:MOST_HOLDERS]]
        if finishing:
            return [(HolderKind.FINISHING, None)]
        return [(HolderKind.PARKED if self.enough else HolderKind.OPENING, None)]
