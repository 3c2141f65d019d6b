"""A writer's capabilities, and the moves that wait until every append before them is acknowledged (E1 barrier).

This is what a writer may still publish. It changes only when the application moves it, or when moves fail.

Sources: rules S35; E1, E5, E50.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from epochal.errors import CapabilityError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time
from epochal.protocol.writer.source_numbers import SourceNumbers


@dataclass(frozen=True, slots=True)
class Move:
    """A change of what is held, or a leave."""

    ticket: int
    capabilities: Counter[Time]
    held: Antichain | None
    """What to hold from then on; None where that does not change."""
    how: m.Leaving | None


class Moves:
    """What one writer holds, as of the last move asked for, and the moves that are not sent yet."""

    def __init__(self) -> None:
        self._capabilities = Counter[Time]()
        self._sent = self._capabilities
        """As of the last move sent; what is left when queued moves fail."""
        self._queue: deque[Move] = deque()
        self.held = Antichain()
        self.sources = SourceNumbers()

    def __len__(self) -> int:
        """How many moves wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Move]:
        return iter(self._queue)

    def begin(self, held: Iterable[Time]) -> None:
        """Hold what the segments gave, once they have opened; no move waits yet."""
        self._capabilities = self._sent = Counter(held)
        self.held = Antichain(self._capabilities)

    def advance(self, ticket: int, time: Time) -> None:
        """Downgrade every capability to `time`."""
        self._ask(ticket, Counter[Time]({time: 1}))

    def is_done(self, time: Time) -> bool:
        """Whether everything held is after `time`, so that nothing is left of a move to it."""
        return not self.held.less_equal(time) and Antichain([time]).reaches_all(self.held)

    def stay(self, ticket: int) -> None:
        """Move nothing, once every append before is acknowledged, as a move would be (E1 barrier)."""
        self._queue.append(Move(ticket, self._capabilities, None, None))

    def hold(self, ticket: int, time: Time) -> None:
        """Hold `time` as a further capability."""
        self._ask(ticket, Counter([*self._capabilities.elements(), time]))

    def check_release(self, writer: str, time: object) -> Time:
        """Return `time`; raise `CapabilityError` unless it is held, and not alone."""
        if self._capabilities[time] < 1:  # type: ignore[index]  # what is no time is not held
            raise CapabilityError(
                f"writer {writer!r} does not hold {time!r}; it holds {sorted(self._capabilities.elements())!r}"
            )
        if self._capabilities.total() == 1:
            raise CapabilityError("the last capability is given up by close() or finish(), not by release()")
        return time  # type: ignore[return-value]  # what is held is a time

    def release(self, ticket: int, time: Time) -> None:
        """Give one capability at `time` up."""
        self._ask(ticket, self._capabilities - Counter[Time]({time: 1}))

    def leave(self, ticket: int, how: m.Leaving) -> None:
        """Leave after all other moves."""
        self._queue.append(Move(ticket, self._capabilities, None, how))

    def take(self, oldest_append: int) -> Iterator[Move]:
        """The moves whose ticket is below that of the oldest append that is not acknowledged, to be sent now."""
        while self._queue and self._queue[0].ticket < oldest_append:
            move = self._queue.popleft()
            self._sent = move.capabilities
            yield move

    def cancel(self) -> list[Move]:
        """Drop what waits: the writer holds what it held before."""
        cancelled = list(self._queue)
        self._queue.clear()
        self.sources.cancelled(move.ticket for move in cancelled)
        self._capabilities = self._sent
        self.held = Antichain(self._sent)
        return cancelled

    def _ask(self, ticket: int, capabilities: Counter[Time]) -> None:
        held = Antichain(capabilities)
        changed = None if held == self.held else held
        self._capabilities = capabilities
        self.held = held
        self._queue.append(Move(ticket, capabilities, changed, None))
        if changed is not None:
            self.sources.moves(ticket, held)
