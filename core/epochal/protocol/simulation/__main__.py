"""`python -m epochal.protocol.simulation SEED`: run one seed again and print what happened.

Apart from `run` because only this prints.
"""

import sys

from epochal.protocol.simulation.run import SimulationFailed, simulate


def main(arguments: list[str]) -> int:
    """Replay the given seeds; returns the exit code: 1 when a rule was broken."""
    if not arguments or not all(text.isdigit() for text in arguments):
        print("usage: python -m epochal.protocol.simulation SEED...", file=sys.stderr)
        return 2
    for seed in map(int, arguments):
        try:
            report = simulate(seed, trace=print)
        except SimulationFailed as failed:
            print(failed, file=sys.stderr)
            return 1
        print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
