"""The version before this one: an earlier commit of this repository, for tests of upgrades."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

COMMIT = "0f049544ecd2981fdff3226eb1f6f7b4946a148e"
"""0.1.0, the first release: what users upgrade from. It changes once the next one is made."""
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
