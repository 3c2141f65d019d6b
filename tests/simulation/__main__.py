"""`python -m tests.simulation [--files] SEED [FIELD=VALUE...]`: run one seed again and print what happened.

Only this prints.
"""

import sys
from ast import literal_eval
from functools import partial

from tests.simulation.run import SimulationFailed, simulate
from tests.simulation.transitions import never_taken


def main(arguments: list[str]) -> int:
    """Replay a seed, with fields of its scenario fixed; returns the exit code: 1 when a rule was broken.

    `--files`: the logs are real files, as in the tests of log files.
    """
    replay = simulate
    if arguments[:1] == ["--files"]:
        from tests.logfiles.conftest import Shim
        from tests.logfiles.test_simulation import run

        replay, arguments = partial(run, shim=Shim, seen=set()), arguments[1:]
    try:
        seed = int(arguments[0])
        fixed = {name: literal_eval(value) for name, _, value in (text.partition("=") for text in arguments[1:])}
    except (IndexError, ValueError, SyntaxError):
        print("usage: python -m tests.simulation [--files] SEED [FIELD=VALUE...]", file=sys.stderr)
        return 2
    try:
        report = replay(seed, trace=print, **fixed)
    except SimulationFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    print(report)
    print("transitions that it never took:", *never_taken(report.transitions), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
