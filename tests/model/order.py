"""Small partial orders, by brute force: a frontier is the set of times it reaches, a horizon the set it covers.

Nothing here comes from the project: no antichain, no lattice, only plain sets. A set that is closed upwards represents
the antichain of its minimal elements, one that is closed downwards that of its maximal ones. So "frontier f has passed
no more than g" is `f >= g`, the join of two frontiers is `&`, the union is `|`.
"""

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import TypeAlias

Time: TypeAlias = int | tuple[int, int]
Times: TypeAlias = frozenset[Time]
NONE: Times = frozenset()


def less_equal(a: Time, b: Time) -> bool:
    """The order of times: that of ints, or componentwise."""
    if isinstance(a, int) or isinstance(b, int):
        assert isinstance(a, int)
        assert isinstance(b, int)
        return a <= b
    return a[0] <= b[0] and a[1] <= b[1]


class Order:
    """The ints below `size`, or the pairs of these, and a rim around them.

    No one writes on the rim. It represents the rest of the infinite order. A frontier that has passed more than any
    finite horizon can cover leaves some of the rim uncovered: an empty frontier, or with pairs also one that has passed
    (0, 0), (1, 0), (2, 0) and so on.
    """

    def __init__(self, size: int, *, pairs: bool) -> None:
        numbers = range(size + 1)
        self.all: Times = frozenset(product(numbers, numbers)) if pairs else frozenset(numbers)
        self.written: list[Time] = sorted(t for t in self.all if max(t if isinstance(t, tuple) else (t,)) < size)
        self.up: dict[Time, Times] = {t: frozenset(u for u in self.all if less_equal(t, u)) for t in self.all}
        self.down: dict[Time, Times] = {t: frozenset(u for u in self.all if less_equal(u, t)) for t in self.all}
        self.under = cache(self._under)
        self.maximal = cache(self._maximal)
        self.minimal = cache(self._minimal)

    def _under(self, times: Times) -> Times:
        """All that is <= some element of `times`."""
        return NONE.union(*(self.down[t] for t in times))

    def _maximal(self, times: Times) -> Times:
        return frozenset(t for t in times if not any(t != u and less_equal(t, u) for u in times))

    def _minimal(self, times: Times) -> Times:
        return frozenset(t for t in times if not any(t != u and less_equal(u, t) for u in times))

    def still(self, horizon: Iterable[Time], reach: Times) -> Times:
        """The horizon of `horizon` without the maximal elements that a frontier no longer reaches (E11)."""
        return self.under(self.maximal(frozenset(horizon)) & reach)


@cache
def order(size: int, pairs: bool) -> Order:
    """The one order of that size and shape, which keeps what it has computed."""
    return Order(size, pairs=pairs)
