"""What a run of the tests leaves behind: what failed and how, and what each file cost.

`--run-report=FILE` writes it as JSON when the run is over, so a run that dies leaves none. `tools/try_again.py` reads
it. The keys: `complete`, whether every test had its turn; `passed`, how many did; `seconds` by file; `broken`, what
failed that is no test; and `failed`, by node id: `text`, and `final`, which says that a second try decides nothing.
"""

import json
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

PROVEN = (
    "tests/exploration/",
    "tests/logfiles/test_simulation.py",
    "tests/model/",
    "tests/protocol/epochs/test_simulated_readers.py",
    "tests/protocol/test_simulation.py",
    "tests/protocol/test_simulation_oracle.py",
    "tests/protocol/test_simulation_transitions.py",
)
"""Simulation and search, under a virtual clock: whatever fails here is a fault, also if it does not fail again."""

EXACT = (
    "tests/chaos/",
    "tests/client/test_changing_topics.py",
    "tests/client/test_interrupted_reads.py",
    "tests/cluster/demo/",
    "tests/cluster/node_tests/test_faults.py",
    "tests/cluster/node_tests/test_relays.py",
    "tests/cluster/node_tests/test_upgrade.py",
    "tests/demo/",
    "tests/e2e/",
    "tests/logfiles/",
    "tests/relay/test_many_changes.py",
    "tests/sidecar/test_killed.py",
    "tests/spark/test_recovery.py",
)
"""Where real processes are killed and every record is counted: what is wrong is a fault, what is late may be not."""

LATE, LAST = "late", "last"
"""Properties of a report: the test only ran out of time; it failed as its process ended, which is about all tests."""


def is_late(error: BaseException) -> bool:
    """Whether a test failed because something did not come in time, and for no other reason."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_late, error.exceptions))
    return isinstance(error, TimeoutError | TimeoutExpired) or getattr(error, "code", None) == "timed_out"


def is_final(test: str, properties: Sequence[tuple[str, object]], *, crashed: bool = False) -> bool:
    """Whether this failure stays one, whatever a second try shows."""
    names = {name for name, _ in properties}
    late = crashed or LATE in names
    return LAST in names or test.startswith(PROVEN) or (test.startswith(EXACT) and not late)


_IS_LAST = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Remember which test is the last one of its process: with it, the fixtures of the session end."""
    item.stash[_IS_LAST] = nextitem is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in a report how its test failed, from whichever process it comes."""
    report = yield
    if report.failed and call.excinfo is not None:
        if is_late(call.excinfo.value):
            report.user_properties.append((LATE, True))
        if call.when == "teardown" and item.stash.get(_IS_LAST, False):
            report.user_properties.append((LAST, True))
    return report


_PHASES = ("setup", "call", "teardown")


class RunReport:
    """Collects it, in the process that gets all reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: set[str] = set()
        self._failed: dict[str, dict[str, Any]] = {}
        self._broken: list[str] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_internalerror(self, excrepr: object) -> None:
        self._broken.append(str(excrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            # xdist reports a worker that died in a test as that test, in no phase.
            final = is_final(report.nodeid, report.user_properties, crashed=report.when not in _PHASES)
            failed = self._failed.setdefault(report.nodeid, {"text": "", "final": False})
            sections = "".join(f"\n---- {title} ----\n{text}" for title, text in report.sections)
            failed["text"] += f"---- {report.when} ----\n{report.longreprtext}{sections}\n"
            failed["final"] = failed["final"] or final
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        over = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        report = {
            "complete": over and not session.shouldfail and not session.shouldstop,
            "passed": len(self._passed - self._failed.keys()),
            "seconds": {file: round(seconds, 3) for file, seconds in sorted(self._seconds.items())},
            "broken": self._broken,
            "failed": self._failed,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1) + "\n")
