"""How long a test waits for what must happen, in seconds: one number for all tests, fitted to the machine.

A wait with a bound of its own choosing is red where a machine is slow, and shows nothing about the code. So every
wait that ends a test as failed uses `PATIENCE`. It only decides how soon a real fault is reported: a test that passes
never waits that long.
"""

import os
import time
import zlib

BASE = 60.0
"""Seconds that a test waits on a machine that does the piece of work below in `REFERENCE` seconds, or faster."""

REFERENCE = 0.05
"""Seconds of `_work` on an idle machine of the kind that the suite was written on."""

MOST = 5.0
"""The greatest factor: three times that patience must end before faulthandler ends the process (pyproject.toml)."""

VARIABLE = "EPOCHAL_TEST_PATIENCE"
"""The environment variable that hands the factor on to the processes of a run, so that all of them agree."""


def _work() -> None:
    data = bytes(1 << 20)
    for _ in range(20):
        zlib.compress(data + os.urandom(1 << 14), 6)


def measured() -> float:
    """How many times as long this machine takes now as the reference: from 1 to `MOST`."""
    began = time.perf_counter()
    _work()
    return min(max((time.perf_counter() - began) / REFERENCE, 1.0), MOST)


FACTOR = float(os.environ.setdefault(VARIABLE, f"{measured():.2f}"))

PATIENCE = BASE * FACTOR
"""Seconds; the bound of every wait whose end makes a test red."""
