"""Which tests run in which process, and in which order, so that `make test` ends as soon as it can.

A file's tests run in one process, as under `--dist loadfile`. All that need Spark run in one as well: each JVM takes
half a minute until it is warm. The files that take longest come first: with those last, the other processes would have
nothing left to do meanwhile.
"""

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

ONE_PROCESS = ("tests/spark/",)
"""Folders whose tests run in one process."""

LONGEST = (
    "tests/spark/",
    "tests/protocol/test_simulation.py",
    "tests/logfiles/test_simulation.py",
    "tests/tools/test_mutants.py",
    "tests/local/test_mode.py",
    "tests/publisher/test_lease.py",
    "tests/publisher/test_disk.py",
    "tests/client/test_since.py",
    "tests/relay/",
    "tests/hostile/",
    "tests/exploration/",
    "tests/e2e/",
    "tests/cli/",
    "tests/client/",
    "tests/publisher/",
    "tests/charts/test_round_trip.py",
    "tests/chaos/",
    "tests/demo/",
)
"""What takes longest, the longest first; the order matters, the set hardly."""


def group(nodeid: str) -> str:
    """What a test shares its process with: the rest of its file, or of its folder."""
    return next((folder for folder in ONE_PROCESS if nodeid.startswith(folder)), nodeid.partition("::")[0])


def rank(nodeid: str) -> int:
    """The place of a test's group in `LONGEST`; of two groups the one of the lower rank begins first."""
    return next((place for place, prefix in enumerate(LONGEST) if nodeid.startswith(prefix)), len(LONGEST))


class InGroups(LoadFileScheduling):  # type: ignore[misc]
    """Gives a process one group of tests after the other, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
