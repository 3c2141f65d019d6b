"""The report of the rules: what it reads, what it makes of it, and when it fails."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rule_report
from rule_report import Rule, Verdict

ROOT = Path(__file__).parents[2]

SECONDS = {"a.py": 1.25, "b.py": 2.5}
TABLE = """
| id | behaviour | source | status |
|---|---|---|---|
| S1 | One. | A paper | current |
| S2 | Two \\| three. | A paper | current |
| E1 whole times | Whole. | Ours | current |
| N1 | Later. | A mail | planned |
"""


def verdicts(results: rule_report.Results, caught: rule_report.Caught | None = None) -> dict[str, Verdict]:
    return {line.rule: line.verdict for line in rule_report.assess(rule_report.read_rules(TABLE), results, caught)}


def test_the_table_is_read_in_its_order():
    assert rule_report.read_rules(TABLE) == {
        "S1": Rule("current"),
        "S2": Rule("current"),
        "E1": Rule("current", "whole times"),
        "N1": Rule("planned"),
    }


def test_a_rule_that_is_listed_twice_is_refused():
    with pytest.raises(ValueError, match="S1 is twice"):
        rule_report.read_rules(TABLE + TABLE)


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="'someday'"):
        rule_report.read_rules(TABLE.replace("planned", "someday"))


def test_passing_failing_and_missing_tests_are_distinguished():
    results = {"S1": {"passed": ["a", "b"], "failed": []}, "S2": {"passed": ["c"], "failed": ["d"]}}
    assert verdicts(results) == {
        "S1": Verdict.TESTED,
        "S2": Verdict.FAILING,
        "E1": Verdict.UNTESTED,
        "N1": Verdict.PLANNED,
    }


def test_a_rule_is_covered_when_a_mutant_of_it_is_caught_and_one_of_our_own_must_be():
    results = {rule: {"passed": ["a"], "failed": []} for rule in ("S1", "S2", "E1")}
    found = verdicts(results, {"S2": [["protocol"]]})
    assert (found["S1"], found["S2"], found["E1"]) == (Verdict.TESTED, Verdict.COVERED, Verdict.UNCOVERED)
    assert verdicts(results, {"E1": [["client"]]})["E1"] is Verdict.COVERED
    assert verdicts({}, {"E1": [["client"]]})["E1"] is Verdict.UNTESTED, "what only a mutant names"


@pytest.mark.parametrize("known_by", ["test", "mutant"])
def test_a_rule_that_the_table_does_not_have_is_reported(known_by):
    results = {"S99": {"passed": ["a"], "failed": []}} if known_by == "test" else {}
    caught = {"S99": [["client"]]} if known_by == "mutant" else {}
    assert verdicts(results, caught)["S99"] is Verdict.UNKNOWN


def run(tmp_path: Path, tested: tuple[str, ...], mutants: list[dict[str, object]] | None) -> int:
    (tmp_path / "rules.md").write_text(TABLE)
    (tmp_path / "tests.json").write_text(
        json.dumps({"rules": {rule: {"passed": ["a"], "failed": []} for rule in tested}, "seconds": SECONDS})
    )
    if mutants is not None:
        (tmp_path / "mutants.json").write_text(json.dumps(mutants))
    return rule_report.main([str(tmp_path / name) for name in ("rules.md", "tests.json", "mutants.json")])


def mutant(verdict: str, *rules: str) -> dict[str, object]:
    return {"mutant": "one", "rules": rules, "parts": ["client"], "test": "a", "verdict": verdict, "seconds": 1.0}


@pytest.mark.parametrize(
    ("tested", "mutants", "code", "told"),
    [
        (("S1", "S2", "E1"), [mutant("caught", "S2", "E1")], 0, "2 covered, 1 tested, 1 planned"),
        (("S1", "E1"), [mutant("caught", "E1")], 1, "1 covered, 1 tested, 1 UNTESTED, 1 planned"),
        (("S1", "S2", "E1"), [mutant("SURVIVED", "E1")], 1, "2 tested, 1 UNCOVERED, 1 planned"),
        (("S1", "S2", "E1"), None, 0, "3 tested, 1 planned"),
    ],
)
def test_it_fails_for_a_current_rule_that_is_not_shown(tmp_path, capsys, tested, mutants, code, told):
    assert run(tmp_path, tested, mutants) == code
    out = capsys.readouterr().out
    assert told in out
    assert ("run `make mutants` first" in out) == (mutants is None)


def test_a_rule_may_be_shown_by_tests_of_another_run_and_a_test_that_fails_there_counts(tmp_path, capsys):
    run(tmp_path, ("S1", "E1"), None)
    files = [str(tmp_path / name) for name in ("rules.md", "tests.json", "mutants.json")]
    clock = tmp_path / "clock.json"
    for passed, failed, code in (["timed"], [], 0), ([], ["timed"], 1):
        clock.write_text(json.dumps({"rules": {"S2": {"passed": passed, "failed": failed}}, "seconds": {"b.py": 1.0}}))
        assert rule_report.main([*files, "--more", str(clock)]) == code
    said = capsys.readouterr().out
    assert re.search(r"S2 +FAILING +0 passing +timed\n", said)
    assert "     3.5 s  b.py\n" in said, "the seconds of both runs"
    both = rule_report.merged({"S1": {"passed": ["a"], "failed": []}}, {"S1": {"passed": ["b"], "failed": ["c"]}})
    assert both == {"S1": {"passed": ["a", "b"], "failed": ["c"]}}


def test_a_line_says_in_which_parts_faults_were_caught(tmp_path, capsys):
    run(tmp_path, ("S1", "S2", "E1"), [mutant("caught", "E1"), mutant("caught", "S1", "E1")])
    assert "E1 whole times   covered    1 passing    mutants: client 2\n" in capsys.readouterr().out


def test_what_the_tests_cost_is_printed_the_dearest_file_first(tmp_path, capsys):
    run(tmp_path, ("S1", "S2", "E1"), None)
    assert "     3.8 s  tests in 2 files\n     2.5 s  b.py\n     1.2 s  a.py\n" in capsys.readouterr().out


def test_the_page_of_rules_is_complete():
    rules = rule_report.read_rules((ROOT / "docs" / "rules.md").read_text())
    expected = [
        f"{family}{n}"
        for family, last in zip("SNWQEF", (35, 21, 35, 16, 26, 18), strict=True)
        for n in range(1, last + 1)
    ]
    more = [f"E{n}" for n in (*range(29, 33), *range(46, 54))]
    assert sorted(rules) == sorted([*expected, *more])


def test_the_tests_write_what_passed_and_what_failed(tmp_path, what_tests_share):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rule(id): a rule\n")
    (tmp_path / "tests").mkdir()
    for path, text in what_tests_share.items():
        (tmp_path / path).write_text(text)
    (tmp_path / "tests" / "test_some.py").write_text(
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
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["seconds"].keys() == {"tests/test_some.py"}
    assert report["rules"] == {
        "S1": {"passed": ["tests/test_some.py::test_good"], "failed": []},
        "S2": {"passed": ["tests/test_some.py::test_good"], "failed": ["tests/test_some.py::test_bad"]},
        "S3": {"passed": [], "failed": ["tests/test_some.py::test_untidy"]},
    }
