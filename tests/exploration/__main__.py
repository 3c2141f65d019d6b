"""`python -m tests.exploration [tries|channels|relays [FIELD=VALUE...]]`: look at every state within bounds.

It prints how many there are. Without a field: the searches of the tests. Only this prints.
"""

import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from typing import Any

from tests.exploration import channels, relays, test_channels, test_relays, test_tries, tries

SEARCHES: dict[str, tuple[list[tuple[dict[str, Any], int]], Callable[..., Any], Callable[[Any], Any]]] = {
    "tries": ([*test_tries.SMALL, *test_tries.LARGE], tries.Bounds, tries.explore),
    "channels": (
        [*test_channels.SMALL, *test_channels.LARGE],
        channels.Bounds,
        lambda bounds: channels.explore(channels.Search(bounds)),
    ),
    "relays": (
        [*test_relays.SMALL, *test_relays.LARGE],
        relays.Bounds,
        lambda bounds: channels.explore(relays.Search(bounds)),
    ),
}


def main(arguments: list[str]) -> int:
    """Search; returns the exit code: 1 where a state is wrong, or no way leads on from it."""
    try:
        searches = list(_searches(arguments))
    except (TypeError, ValueError, SyntaxError, KeyError) as error:
        print(f"{error}\nusage: python -m tests.exploration [tries|channels|relays [FIELD=VALUE...]]", file=sys.stderr)
        return 2
    trapped = False
    for bounds, explore in searches:
        began = time.monotonic()
        found = explore(bounds)
        took = time.monotonic() - began
        print(
            f"{found.states:>9,} states, {found.steps:>10,} steps, {found.settled:>7,} settled, {took:6.1f} s  {bounds}"
        )
        for state in found.trapped:
            print("no way leads on from", state)
        trapped = trapped or bool(found.trapped)
    return int(trapped)


def _searches(arguments: list[str]) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    names, fields = arguments[:1] or list(SEARCHES), arguments[1:]
    given = {name: literal_eval(value) for name, _, value in (text.partition("=") for text in fields)}
    for name in names:
        tested, bounds, explore = SEARCHES[name]
        for each in [given] if given else [each for each, _ in tested]:
            yield bounds(**each), explore


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
