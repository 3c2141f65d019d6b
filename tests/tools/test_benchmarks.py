"""The benchmarks are run by hand; that they can be loaded is seen here."""

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def test_every_benchmark_can_be_loaded() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "benchmarks/run.py", "--help"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=PATIENCE, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "P7" in done.stdout
