"""The fuzzer's own process: the first byte chooses a decoder, the rest is what it reads.

Instrumented at import, so it stands apart from the tests. `python fuzz.py -max_total_time=60 SEEDS`.
"""

import sys

import atheris  # it is not in the lock: there is no wheel for every platform

with atheris.instrument_imports(include=["epochal", "verdicts"]):
    from verdicts import DECODERS, verdict  # beside this file

NAMES = sorted(DECODERS)


def one(data: bytes) -> None:
    """Give one input to its decoder; whatever is raised is a finding."""
    if data:
        verdict(NAMES[data[0] % len(NAMES)], data[1:])


atheris.Setup(sys.argv, one)
atheris.Fuzz()
