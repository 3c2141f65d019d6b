"""A test that fails is tried once more: what is unstable then, what stays red, and that the same is drawn again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.run_report import EXACT, LAST, LATE, PROVEN, is_final, is_late

import run_results
import try_again

ROOT = Path(__file__).parents[2]
FIRST_TIME = """
import os, pathlib, pytest

def first_time(name):
    file = pathlib.Path("seen", name)
    file.parent.mkdir(exist_ok=True)
    there = file.exists()
    file.touch()
    return not there
"""


@pytest.fixture
def project(tmp_path: Path, what_tests_share: dict[str, str]) -> Path:
    """A tree for tests of its own, with what all tests share."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rule(id): a rule\naddopts = -p no:schemathesis\n")
    (tmp_path / "tests").mkdir()
    for path, text in what_tests_share.items():
        (tmp_path / path).write_text(text)
    return tmp_path


def run(project: Path, *arguments: str, code: int, **files: str) -> tuple[str, dict[str, object]]:
    """Run these files of tests as the Makefile does; what was printed, and what was stored."""
    for name, text in files.items():
        (project / "tests" / f"test_{name}.py").write_text(FIRST_TIME + text)
    tool = str(ROOT / "tools" / "try_again.py")
    command = [sys.executable, tool, "some", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    stored = project / ".cache" / "ci" / "runs" / "some.json"
    return done.stdout, json.loads(stored.read_text()) if stored.exists() else {}


def unstable(stored: dict[str, object]) -> list[str]:
    """The tests that count as unstable."""
    found = stored["unstable"]
    assert isinstance(found, list)
    return [each["test"] for each in found]


def test_what_passes_by_itself_is_unstable_and_what_fails_again_is_red_also_where_a_process_dies(project: Path) -> None:
    (project / "tests" / "model").mkdir()
    (project / "tests" / "model" / "test_proof.py").write_text(
        FIRST_TIME + "def test_proof(): assert not first_time('proof')"
    )
    said, stored = run(
        project, "-n", "2", "--dist", "loadfile", "--rules-report=rules.json", code=1,
        one="@pytest.mark.rule('S1', 'S2')\ndef test_good(): pass\n"
        "@pytest.mark.rule('S2')\n@pytest.mark.parametrize('a', ['b c'])\n"
        "def test_flaky(a): assert not first_time('flaky'), 'the first reason'\n",
        two="@pytest.mark.rule('S3')\ndef test_bad(): assert False\n"
        "@pytest.mark.rule('S4')\ndef test_dies():\n    if first_time('dies'): os.kill(os.getpid(), 9)\n",
    )  # fmt: skip
    flaky, dies = "tests/test_one.py::test_flaky[b c]", "tests/test_two.py::test_dies"
    assert sorted(unstable(stored)) == [flaky, dies]
    assert f"UNSTABLE {flaky}" in said
    assert "RED tests/test_two.py::test_bad" in said
    assert "RED tests/model/test_proof.py::test_proof" in said
    assert "test_proof is not tried again" in said
    kept = {file.name: file.read_text() for file in (project / ".cache/ci/unstable/some").iterdir()}
    assert "the first reason" in kept["tests-test_one.py-test_flaky-b-c-.txt"]
    assert "crashed while running" in kept["tests-test_two.py-test_dies.txt"]
    report = json.loads((project / "rules.json").read_text())
    assert report["rules"] == {
        "S1": {"passed": ["tests/test_one.py::test_good"], "failed": []},
        "S2": {"passed": [flaky, "tests/test_one.py::test_good"], "failed": []},
        "S3": {"passed": [], "failed": ["tests/test_two.py::test_bad"]},
        "S4": {"passed": [dies], "failed": []},
    }
    assert set(report["seconds"]) == {"tests/test_one.py", "tests/test_two.py", "tests/model/test_proof.py"}


def test_the_second_try_draws_what_the_first_one_drew(project: Path) -> None:
    said, stored = run(project, code=0, drawing="""
from hypothesis import given, settings, strategies as st
from tests.seeds import fresh_seed

drawn = []

@pytest.fixture
def compared():
    yield
    file = pathlib.Path("drawn")
    if not file.exists():
        file.write_text(repr(drawn))
        raise RuntimeError
    assert file.read_text() == repr(drawn)

@pytest.mark.usefixtures("compared")
@settings(max_examples=5)
@given(st.integers())
def test_examples(number):
    drawn.append(number)

def test_seeds():
    file, seeds = pathlib.Path("seeds"), repr([fresh_seed(), fresh_seed(10**6)])
    if not file.exists():
        file.write_text(seeds)
        assert not first_time("seeds")
    assert file.read_text() == seeds

def test_the_end(): pass
""")  # fmt: skip
    assert unstable(stored) == [f"tests/test_drawing.py::test_{name}" for name in ("examples", "seeds")], said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def test_all(): os._exit(1)", "the run died"),
        (
            "@pytest.fixture(scope='session')\ndef left():\n    yield\n    assert not first_time('left')\n"
            "def test_all(left): pass",
            "not tried again",
        ),
        ("first_time('collected') and unknown\ndef test_all(): pass", "error"),
    ],
    ids=["a process that ends", "the end of the session", "a file that is broken"],
)
def test_what_belongs_to_no_test_stays_red(project: Path, text: str, why: str) -> None:
    code = 2 if why == "error" else 1
    said, _ = run(project, code=code, one=text)
    assert why in said
    assert "UNSTABLE" not in said


def test_more_failures_than_may_be_unstable_are_red_at_once() -> None:
    failed: dict[str, object] = {str(number): {} for number in range(run_results.MOST_UNSTABLE + 1)}
    report = {"complete": True, "broken": [], "failed": failed}
    assert try_again.reason_for_no_second_try(report) == "more than 5 tests failed"
    failed.popitem()
    assert not try_again.reason_for_no_second_try(report)


def test_a_wrong_result_of_what_counts_every_record_is_final_and_a_late_one_is_not() -> None:
    exact, proven, other = "tests/e2e/test_durable.py::t", "tests/model/test_horizon.py::t", "tests/cli/test_up.py::t"
    assert is_final(exact, [])
    assert not is_final(exact, [(LATE, True)])
    assert not is_final(exact, [], crashed=True)
    assert is_final(proven, [(LATE, True)])
    assert is_final(proven, [], crashed=True)
    assert not is_final(other, [])
    assert is_final(other, [(LAST, True)])
    assert is_late(ExceptionGroup("", [TimeoutError()]))
    assert not is_late(ExceptionGroup("", [TimeoutError(), AssertionError()]))


def test_all_that_uses_the_simulation_the_search_or_the_checker_is_named() -> None:
    assert all((ROOT / name).exists() for name in (*PROVEN, *EXACT))
    judges = ("simulation", "exploration", "model", "chaos.checker", "cluster.harness.load")
    users = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)]
    using = [name for name in users if any(f"from tests.{judge}" in (ROOT / name).read_text() for judge in judges)]
    assert [name for name in using if not name.startswith((*PROVEN, *EXACT))] == []


def test_the_table_of_ci_has_the_dearest_files_and_every_unstable_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()

    def store(name: str, seconds: dict[str, float], count: int) -> None:
        found = [{"test": f"{name}::{number}", "traceback": "there"} for number in range(count)]
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps({"seconds": seconds, "unstable": found}))

    store("test", {"a.py": 3.0, "b.py": 5.0}, 2)
    store("long", {"a.py": 4.0}, 3)
    assert run_results.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "of 12 s" in said
    assert said.index("7.0 s  a.py") < said.index("5.0 s  b.py  (test)")
    assert said.count("UNSTABLE") == 5
    store("long", {}, 4)
    assert run_results.main([str(tmp_path)]) == 1
