"""Whom a publisher hears that begins without knowing what may be lost, and whether it hears all that it can (E11).

The node passes on what arrives, and this judges: it counts the writers itself, and believes no machine that it has
heard enough.
"""

from collections.abc import Iterable

from tests.simulation.oracle import Violation

from epochal.protocol import messages as m


class Gathering:
    """One incarnation. `known` are the writers of the last one, `waits` the longest time that it waits for them."""

    def __init__(self, where: str, known: Iterable[str], waits: float) -> None:
        self._where, self._known, self._waits = where, frozenset(known), waits
        self._asking: set[str] = set()
        self._heard: dict[bytes, tuple[str, int]] = {}
        self._decided = False

    @property
    def heard(self) -> set[tuple[str, int]]:
        """The sessions that have said in time what they had at the last incarnation."""
        return set(self._heard.values())

    def asks(self, peer: bytes, owner: tuple[str, int], ask: m.Open) -> None:
        """A session asks to open."""
        self._asking.add(ask.writer)
        if ask.resume is not None and not self._decided:
            self._heard[peer] = owner

    def refused(self, peer: bytes) -> None:
        """The publisher has answered a session before it began, so what that session has is not heard."""
        self._heard.pop(peer, None)

    def tick(self, waited: float) -> None:
        """After so many seconds the publisher decides what may be lost, if it has heard all writers, or long enough."""
        self._decided = self._decided or self._may_begin(waited)

    def _may_begin(self, waited: float) -> bool:
        return self._known <= self._asking or waited >= self._waits

    def begins(self, waited: float) -> None:
        """It begins now. Raises if it had to wait for somebody."""
        if not self._may_begin(waited):
            raise self._early()

    def died(self) -> None:
        """It died, and what may be lost was recorded before. Raises if it could not know that yet."""
        if not self._decided:
            raise self._early()

    def _early(self) -> Violation:
        missing = sorted(self._known - self._asking)
        return Violation(f"E11: {self._where}, says what is lost, and has not heard {missing}")
