"""What every test shares: the report of the rules that passing tests cover, and how hypothesis runs.

`--rules-report=FILE` writes JSON, `{rule id: {"passed": [test, ...], "failed": [test, ...]}}`, which `make rules`
reads. A test names the rules that it shows by `@pytest.mark.rule("S2")`; one that is skipped shows nothing.
"""

import json
from pathlib import Path

import pytest
from hypothesis import settings

# Two busy cores make single examples slow now and then; that says nothing about the code.
settings.register_profile("epochal", deadline=None)
settings.load_profile("epochal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rules-report", type=Path, default=None, help="write which rules passing tests cover to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--rules-report")
    if path is not None:
        config.pluginmanager.register(RulesReport(path), "rules-report")


class RulesReport:
    """Collects outcomes by rule id while the tests run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules: dict[str, list[str]] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            ids = {str(rule) for mark in item.iter_markers("rule") for rule in mark.args}
            self._rules[item.nodeid] = sorted(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # in any phase: a test that fails to clean up shows nothing either
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        results: dict[str, dict[str, list[str]]] = {}
        for outcome, tests in (("passed", self._passed - self._failed), ("failed", self._failed)):
            for test in sorted(tests & self._rules.keys()):
                for rule in self._rules[test]:
                    results.setdefault(rule, {"passed": [], "failed": []})[outcome].append(test)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
