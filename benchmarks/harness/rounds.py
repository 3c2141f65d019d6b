"""Rounds: every system in turn, again and again, so that a busy moment of the machine meets all of them.

Apart from the measures because what may be compared is decided here: medians over rounds for a look, and for a target
the median of the ratios within each round.
"""

import random
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over theirs: the median over the rounds, with the least and the most."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """Compare round by round."""
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.least:.2f}-{self.most:.2f})"


def interval(ratios: Sequence[float]) -> str:
    """The median with its 95 % interval, by bootstrap: 4,000 samples."""
    draws = random.Random(1)
    middles = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(4000))
    return f"{statistics.median(ratios):.2f} ({middles[100]:.2f}-{middles[3899]:.2f})"


async def in_turn(
    rounds: int, systems: Mapping[str, Callable[[], Awaitable[float]]], tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Figures of each system by name, one a round; the systems take turns within a round."""
    figures: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, run in systems.items():
            figures[name].append(await run())
        tell(f"round {number + 1}: " + ", ".join(f"{name} {taken[-1]:,.4g}" for name, taken in figures.items()))
    return figures


def middle(figures: Sequence[float]) -> float:
    """The median."""
    return statistics.median(figures)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
