"""`python -m tests.simulation SEED [FIELD=VALUE...]`: run one seed again and print what happened.

Only this prints.
"""

import sys
from ast import literal_eval

from tests.simulation.run import SimulationFailed, simulate


def main(arguments: list[str]) -> int:
    """Replay a seed, with fields of its scenario fixed; returns the exit code: 1 when a rule was broken."""
    try:
        seed = int(arguments[0])
        fixed = {name: literal_eval(value) for name, _, value in (text.partition("=") for text in arguments[1:])}
    except (IndexError, ValueError, SyntaxError):
        print("usage: python -m tests.simulation SEED [FIELD=VALUE...]", file=sys.stderr)
        return 2
    try:
        print(simulate(seed, trace=print, **fixed))
    except SimulationFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
