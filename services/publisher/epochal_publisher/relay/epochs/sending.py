"""The outcomes that are being sent to readers: their bytes, and which readers are cut above a bound.

Separate from the ring because a slow reader keeps outcomes in memory that the ring has dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from epochal_publisher.relay.epochs.encoding import Outcome


class _Reader:
    def __init__(self, outcomes: Sequence[Outcome], cut: Callable[[], None]) -> None:
        self.outcomes = outcomes
        self.cut = cut


class Sending:
    """At most `most` bytes are being sent; an outcome counts once, however many readers it is sent to.

    Above that, the readers of the oldest outcome are cut, and come back with a cursor. The newest reader is never cut
    by its own outcomes, so an outcome that is larger than the bound is sent alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: dict[int, tuple[Outcome, dict[_Reader, None]]] = {}
        """Outcomes by identity, each with its readers, in the order in which sending began."""
        self.bytes = 0

    @contextmanager
    def to_reader(self, outcomes: Sequence[Outcome], cut: Callable[[], None]) -> Iterator[None]:
        """Count `outcomes` while they are sent to one reader. `cut` ends its connection, and is called once at most."""
        reader = _Reader(outcomes, cut)
        for outcome in outcomes:
            known = self._sent.get(id(outcome))
            if known is None:
                known = self._sent[id(outcome)] = outcome, {}
                self.bytes += outcome.size
            known[1][reader] = None
        self._make_room(reader)
        try:
            yield
        finally:
            self._end(reader)

    def _make_room(self, newest: _Reader) -> None:
        while self.bytes > self._most:
            others = (readers for _, readers in self._sent.values() if newest not in readers)
            oldest = next(others, None)
            if oldest is None:
                return
            for reader in [*oldest]:
                self._end(reader)
                reader.cut()

    def _end(self, reader: _Reader) -> None:
        """Stop counting `reader`; does nothing the second time."""
        for outcome in reader.outcomes:
            _, readers = self._sent.get(id(outcome), (outcome, {}))
            if reader in readers:
                del readers[reader]
                if not readers:
                    del self._sent[id(outcome)]
                    self.bytes -= outcome.size
