"""The version before this one: an earlier commit of this repository, for tests of upgrades."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

COMMIT = "HEAD"
"""The version before: the release that users upgrade from. It changes once a release is made.

0.1.0 is the first one. Until it is made, the last commit takes its place: the tests then try that the present tree
works beside it.
"""
_ROOT = Path(__file__).parents[1]


class NoHistoryError(Exception):
    """This clone does not have the commit."""


def commit() -> str:
    """Its full hash; raises `NoHistoryError`, as `extract` does."""
    return _git("rev-parse", "--verify", f"{COMMIT}^{{commit}}").decode().strip()


def extract(parts: Sequence[str], target: Path) -> None:
    """Write its files below these folders into `target`."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit(), *parts))) as files:
        files.extractall(target, filter="data")


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise NoHistoryError(f"needs a clone with the commit {COMMIT} in its history: {done.stderr.decode()}")
    return done.stdout
