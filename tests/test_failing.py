"""A test that fails must end."""

import subprocess
import sys

import pytest


def test_a_test_that_fails_does_not_wait_for_the_program_that_it_holds() -> None:
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(ZeroDivisionError), subprocess.Popen(waits) as held:
        raise ZeroDivisionError
    assert held.returncode == -9
