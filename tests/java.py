"""How Java runs below tests: most of what a JVM does in its first minute is loading and compiling what runs once.

PySpark reads options from PYSPARK_SUBMIT_ARGS where a Python program starts a JVM (`pyspark` and `spark-submit` do
not). Tests ask for the quick compiler there, and for classes from an archive: these need not be looked for, read and
verified, which is half of what a session takes to start. `make spark-classes` makes the archive; without it, or where
it does not fit this Java or its files, classes are loaded as ever.
"""

import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / ".cache" / "spark" / "classes.jsa"
SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"

ON_STDERR = "-Xlog:disable -Xlog:all=warning:stderr"
"""A JVM prints its warnings to its standard output unless told otherwise: an archive of other files is one."""

USED = "tests/spark/test_queries.py::test_two_streams_take_rows_from_one_session"
"""A test whose classes are archived: queries, files, rows, Arrow, and Python's workers."""


def run_java_quickly(environment: MutableMapping[str, str]) -> None:
    """Let Spark sessions of this process, and of those that it starts, take the archive; what is set already stays."""
    environment.setdefault(SUBMIT_ARGS, _submit_args(f"-XX:SharedArchiveFile='{ARCHIVE}' {ON_STDERR}"))


def make() -> int:
    """Run some tests, and archive the classes that Spark had loaded; pytest's exit code."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    new = ARCHIVE.with_suffix(".new")
    options = _submit_args(f"-XX:ArchiveClassesAtExit='{new}' -Xlog:disable")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", USED], cwd=ROOT, env={**os.environ, SUBMIT_ARGS: options}, check=False
    )
    if done.returncode == 0:
        new.replace(ARCHIVE)
    return done.returncode


def _submit_args(options: str) -> str:
    return f'--conf "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options}" pyspark-shell'


if __name__ == "__main__":
    sys.exit(make())
