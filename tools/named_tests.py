"""A pytest plugin that runs only the named tests of the given files, and writes what became of each.

Used by tools/mutants.py: pytest itself runs nothing at all when one of the named tests does not exist.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the two files."""
    parser.addoption("--named", type=Path, help="JSON: a list of tests, as path::name, with or without parameters")
    parser.addoption("--outcomes", type=Path, help='where to write {test: {"passed": bool, "seconds": s, "rules": []}}')


def pytest_configure(config: pytest.Config) -> None:
    """Begin to listen."""
    named: Path = config.getoption("--named")  # pyright: ignore[reportAssignmentType]  # both are always given
    outcomes: Path = config.getoption("--outcomes")  # pyright: ignore[reportAssignmentType]
    config.pluginmanager.register(_Named(json.loads(named.read_text()), outcomes), "named-tests")


class _Named:
    def __init__(self, names: Sequence[str], target: Path) -> None:
        self._names, self._target = frozenset(names), target
        self._of: dict[str, str] = {}
        self._rules: dict[str, list[set[str]]] = {}
        self._seconds: dict[str, float] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        dropped = []
        for item in items:
            name = item.nodeid if item.nodeid in self._names else item.nodeid.partition("[")[0]
            if name not in self._names:
                dropped.append(item)
                continue
            self._of[item.nodeid] = name
            rules = {str(rule) for mark in item.iter_markers("rule") for rule in mark.args}
            self._rules.setdefault(name, []).append(rules)
        items[:] = [item for item in items if item.nodeid in self._of]
        config.hook.pytest_deselected(items=dropped)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self._of[report.nodeid]
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed:
            self._failed.add(name)
        elif report.when == "call" and report.passed:
            self._passed.add(name)

    def pytest_sessionfinish(self) -> None:
        outcomes = {
            name: {
                "passed": name in self._passed - self._failed,
                "seconds": self._seconds.get(name, 0.0),
                "rules": sorted(set.intersection(*rules)),
            }
            for name, rules in self._rules.items()
        }
        self._target.write_text(json.dumps(outcomes))
