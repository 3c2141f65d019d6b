"""One seed for a run, from which each test has its own: what failed by chance fails again when the seed is given again.

`EPOCHAL_TEST_SEED=N python -m pytest TEST` draws what the run with seed N drew, whichever other tests ran beside it:
hypothesis' examples, the seeds of the simulation, of chaos rounds, and of tests that kill or interrupt by chance.
"""

import os
import random
from collections import Counter
from hashlib import blake2b

VARIABLE = "EPOCHAL_TEST_SEED"
"""The environment variable that holds the seed, and hands it on to the processes of a run."""

SEED = int(os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(2**32))))

_drawn: Counter[str] = Counter()


def seed_of(test: str, number: int = 0) -> int:
    """A number of 64 bits that this run gives to a test, by its node id; `number` counts those of one test."""
    return int.from_bytes(blake2b(f"{SEED} {number} {test}".encode(), digest_size=8).digest(), "big")


def fresh_seed(below: int = 2**32) -> int:
    """A seed for the test that runs: another one in each run and at each call, and the same in a run with its seed."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without the phase
    _drawn[test] += 1
    return seed_of(test, _drawn[test]) % below
