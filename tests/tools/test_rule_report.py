"""The report of the rules: what it reads, what it makes of it, and when it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rule_report
from rule_report import Verdict

CONFTEST = Path(__file__).parent.parent / "conftest.py"

TABLE = """
| id | behaviour | source | status |
|---|---|---|---|
| S1 | One. | A paper | current |
| S2 | Two \\| three. | A paper | current |
| N1 | Later. | A mail | planned |
"""


def verdicts(results: rule_report.Results) -> dict[str, Verdict]:
    return {line.rule: line.verdict for line in rule_report.assess(rule_report.read_rules(TABLE), results)}


def test_the_table_is_read_in_its_order():
    assert rule_report.read_rules(TABLE) == {"S1": "current", "S2": "current", "N1": "planned"}


def test_a_rule_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="S1 stands twice"):
        rule_report.read_rules(TABLE + TABLE)


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="'someday'"):
        rule_report.read_rules(TABLE.replace("planned", "someday"))


def test_passing_failing_and_missing_tests_are_told_apart():
    results = {"S1": {"passed": ["a", "b"], "failed": []}, "S2": {"passed": ["c"], "failed": ["d"]}}
    assert verdicts(results) == {"S1": Verdict.COVERED, "S2": Verdict.FAILING, "N1": Verdict.PLANNED}
    assert verdicts({})["S1"] is Verdict.UNCOVERED


def test_a_rule_that_only_a_test_knows_is_reported():
    assert verdicts({"S99": {"passed": ["a"], "failed": []}})["S99"] is Verdict.UNKNOWN


@pytest.mark.parametrize(("covered", "code"), [(("S1", "S2"), 0), (("S1",), 1)])
def test_only_uncovered_current_rules_make_it_fail(tmp_path, capsys, covered, code):
    (tmp_path / "rules.md").write_text(TABLE)
    (tmp_path / "report.json").write_text(json.dumps({rule: {"passed": ["a"], "failed": []} for rule in covered}))
    assert rule_report.main([str(tmp_path / "rules.md"), str(tmp_path / "report.json")]) == code
    assert f"{len(covered)} covered" in capsys.readouterr().out


def test_the_page_of_rules_is_complete():
    rules = rule_report.read_rules((CONFTEST.parent.parent / "docs" / "rules.md").read_text())
    expected = [
        f"{family}{n}" for family, last in zip("SNWQE", (35, 21, 35, 16, 26), strict=True) for n in range(1, last + 1)
    ]
    assert sorted(rules) == sorted([*expected, "E46"])


def test_the_tests_write_what_passed_and_what_failed(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rule(id): a rule\n")
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.rule('S1', 'S2')\n"
        "def test_good(): pass\n"
        "@pytest.mark.rule('S2')\n"
        "def test_bad(): assert False\n"
        "@pytest.fixture\n"
        "def untidy():\n"
        "    yield\n"
        "    raise RuntimeError\n"
        "@pytest.mark.rule('S3')\n"
        "def test_untidy(untidy): pass\n"
        "@pytest.mark.rule('S4')\n"
        "@pytest.mark.skip\n"
        "def test_skipped(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rules-report=out/report.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == {
        "S1": {"passed": ["test_some.py::test_good"], "failed": []},
        "S2": {"passed": ["test_some.py::test_good"], "failed": ["test_some.py::test_bad"]},
        "S3": {"passed": [], "failed": ["test_some.py::test_untidy"]},
    }
