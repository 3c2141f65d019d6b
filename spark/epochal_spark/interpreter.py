"""Checks that the Python which Spark's workers run can run the sink.

Separate from `sessions`, which sets the right one where it can, because the data source checks it whenever it is
registered. Unless PYSPARK_PYTHON is set, PySpark takes `python3` from the PATH. That may be another Python than the
driver's, and then a task fails with an import error that does not show the cause.
"""

import os
import shutil
import subprocess
import sys

from pyspark import SparkContext

from epochal.errors import ConfigError

_TIMEOUT = 60.0
_TRY = "import sys, epochal_spark; print('%d.%d' % sys.version_info[:2])"

_fit: set[str] = set()
"""Interpreters that were tried and can run the sink."""


def check_workers(context: SparkContext) -> None:
    """Raise `ConfigError` if Spark's workers would run a Python that cannot run the sink."""
    python = context.pythonExec
    found = shutil.which(python)
    if found is None:
        raise _unfit(python, "there is no such program")
    if found in _fit or _is_this_one(found):
        return
    problem = _try(found)
    if problem:
        raise _unfit(python, problem)
    _fit.add(found)


def _is_this_one(found: str) -> bool:
    """Whether it is this interpreter in the same environment; a virtual environment is known by its directory."""
    return os.path.samefile(found, sys.executable) and os.path.dirname(found) == os.path.dirname(sys.executable)


def _try(python: str) -> str:
    """What is wrong with an interpreter; empty if it can run the sink."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        tried = subprocess.run([python, "-c", _TRY], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode:
        last = tried.stderr.strip().splitlines() or ["it cannot import epochal_spark"]
        return last[-1]
    version = tried.stdout.strip()
    return "" if version == here else f"it is Python {version}, and the driver is Python {here}"


def _unfit(python: str, problem: str) -> ConfigError:
    return ConfigError(
        f"Spark's workers would run {python!r}, which cannot run the sink `epochal`: {problem}. Set "
        f"PYSPARK_PYTHON={sys.executable} before Spark starts (on a cluster: the same path on every node), or, where "
        "Spark runs on this machine only, call epochal_spark.register(spark) instead"
    )
