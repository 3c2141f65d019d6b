"""`python -m tests.exploration [FIELD=VALUE...]`: look at every state of two tries within bounds, and print how many.

Without a field: the searches of the tests. Only this prints.
"""

import sys
import time
from ast import literal_eval
from typing import Any

from tests.exploration.test_tries import LARGE, SMALL
from tests.exploration.tries import Bounds, explore


def main(arguments: list[str]) -> int:
    """Search; returns the exit code: 1 where a state is wrong, or no way leads on from it."""
    try:
        given = {name: literal_eval(value) for name, _, value in (text.partition("=") for text in arguments)}
        searches: list[dict[str, Any]] = [given] if given else [bounds for bounds, _ in (*SMALL, *LARGE)]
        bounded = [Bounds(**each) for each in searches]
    except (TypeError, ValueError, SyntaxError) as error:
        print(f"{error}\nusage: python -m tests.exploration [FIELD=VALUE...]", file=sys.stderr)
        return 2
    trapped = False
    for bounds in bounded:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
