"""Virtual time: a clock that jumps from one thing that happens to the next, and the one source of chance.

Nothing else in the simulation advances time or draws numbers.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from tests.simulation.history import History

Act = Callable[[], object]


class World:
    """The clock (seconds since the start), the queue of what will happen, and the random numbers of one run."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.calm = False
        """Whether faults have stopped."""
        self.history = History(lambda: self.now)
        """What applications did and saw, and what was done to them and to the publishers."""
        self.counts = Counter[str]()
        """How often what has happened, so that a test can see that it was tried."""
        self._queue: list[tuple[float, int, Act]] = []
        self._order = count()
        self._trace = trace

    @property
    def tracing(self) -> bool:
        """Whether anybody reads the trace; building its lines costs more than the run."""
        return self._trace is not None

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self._trace is not None:
            self._trace(f"{self.now:8.3f}  {text}")

    def count(self, what: str) -> None:
        """It has happened once more."""
        self.counts[what] += 1

    def at(self, time: float, act: Act) -> None:
        """Let `act` happen at `time`; of things at one time the first asked for happens first."""
        heappush(self._queue, (time, next(self._order), act))

    def after(self, delay: float, act: Act) -> None:
        """Let `act` happen `delay` seconds from now."""
        self.at(self.now + delay, act)

    def between(self, low: float, high: float) -> float:
        """A random number of seconds."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens now."""
        return self.random.random() < probability

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to time `until`, or until `done`."""
        queue = self._queue
        while queue and queue[0][0] <= until and not done():
            self.now, _, act = heappop(queue)
            act()
        if not done():
            self.now = max(self.now, until)
