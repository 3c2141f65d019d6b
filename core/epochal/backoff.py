"""Pauses between attempts that fail: each up to twice as long as the one before, and not at the same moments for all.

Chance is taken from the system. A library does not move the seeded generator of the program that uses it, and forked
workers do not share one sequence.
"""

import asyncio
from random import SystemRandom

_chance = SystemRandom()


class Backoff:
    """Pauses of up to `least` seconds, then twice that, and so on up to `most`; `reset` after an attempt that worked.

    `jitter` is the share of each pause that is random: 0.5 gives half of the longest to the longest, 0 the longest.
    """

    def __init__(self, least: float, most: float, *, jitter: float = 0.5) -> None:
        self._least = least
        self._most = most
        self._jitter = jitter
        self._longest = min(least, most)

    def reset(self) -> None:
        """The next pause is the shortest again."""
        self._longest = min(self._least, self._most)

    def delay(self) -> float:
        """Seconds of the next pause."""
        longest = self._longest
        self._longest = min(2 * longest, self._most)
        return longest * (1 - self._jitter * _chance.random())

    async def pause(self) -> None:
        """Wait for the next delay."""
        await asyncio.sleep(self.delay())
