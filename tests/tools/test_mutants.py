"""The runner of mutants, on a tiny tree of its own: what is caught, what survives, what cannot be judged."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from tests.patience import BASE, VARIABLE

import mutants
from forked_pytest import ForkServer

PROJECT = """
[tool.hatch.build.targets.wheel]
packages = ["core/tinymodule"]

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
markers = ["rule(id): a rule"]
"""

CODE = """def smaller(a, b):
    return a < b


def larger(a, b):
    return a > b
"""

TESTS = """import pytest
import tinymodule


@pytest.mark.rule("S1")
def test_smaller():
    assert tinymodule.smaller(1, 2) and not tinymodule.smaller(1, 1)


def test_larger():
    assert tinymodule.larger(2, 1)


@pytest.mark.rule("S1")
def test_wrong():
    assert False


@pytest.mark.rule("S1", "S2")
@pytest.mark.parametrize("number", [1, 2])
def test_each(number):
    assert not tinymodule.smaller(number, 1 if number == 1 else 0)
"""

PATCH = """Rule: {rule}
Test: tests/test_tiny.py::{test}
Fault: An equal element counts as smaller.

--- a/core/tinymodule/__init__.py
+++ b/core/tinymodule/__init__.py
@@ -1,5 +1,5 @@
 def smaller(a, b):
-    return {before}
+    return {after}
{blank}
{blank}
 def larger(a, b):
"""


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ForkServer]:
    """The tests of a tiny tree need none of the packages that ours need."""
    with ForkServer(()) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch, shared_server) -> None:
    """Each run has the process to fork from that is there already."""
    monkeypatch.setattr(mutants, "ForkServer", lambda: nullcontext(shared_server))


@pytest.fixture
def own_server(monkeypatch, nothing_loaded) -> None:
    """Each run starts one, with the environment that there is by then."""
    monkeypatch.setattr(mutants, "ForkServer", partial(ForkServer, ()))


@pytest.fixture
def tree(tmp_path, what_tests_share) -> Path:
    for path, text in {
        "pyproject.toml": PROJECT,
        "core/tinymodule/__init__.py": CODE,
        **what_tests_share,
        "tests/test_tiny.py": TESTS,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "tests" / "mutants").mkdir()
    return tmp_path


def add_mutant(tree: Path, name="one", *, rule="S1", test="test_smaller", before="a < b", after="a <= b") -> None:
    text = PATCH.format(rule=rule, test=test, before=before, after=after, blank=" ")
    (tree / "tests" / "mutants" / f"{name}.patch").write_text(text)


def test_a_fault_that_the_test_notices_is_caught_and_the_tree_untouched(tree, capsys):
    add_mutant(tree)
    assert mutants.main(["--root", str(tree)]) == 0
    assert "1 of 1 mutants caught" in capsys.readouterr().out
    assert (tree / "core/tinymodule/__init__.py").read_text() == CODE


def test_several_are_judged_at_a_time_and_each_sees_its_own_fault_only(tree, tmp_path, capsys):
    add_mutant(tree)
    add_mutant(tree, "several", rule="S1, S2", test="test_each")
    add_mutant(tree, "gone", test="test_gone")
    add_mutant(tree, "survivor", after="b > a")
    report = tmp_path / "out" / "mutants.json"
    assert mutants.main(["--root", str(tree), "--report", str(report), "--jobs", "3"]) == 1
    assert "2 of 4 mutants caught" in capsys.readouterr().out
    written = json.loads(report.read_text())
    assert {one["mutant"]: one["verdict"] for one in written} == {
        "one": "caught",
        "several": "caught",
        "gone": "BROKEN",
        "survivor": "SURVIVED",
    }
    several = next(one for one in written if one["mutant"] == "several")
    assert (several["rules"], several["parts"]) == (["S1", "S2"], ["core"])


def test_one_alone_can_be_judged(tree, capsys):
    add_mutant(tree)
    add_mutant(tree, "survivor", after="b > a")
    assert mutants.main(["--root", str(tree), str(tree / "tests/mutants/one.patch")]) == 0
    assert "1 of 1 mutants caught" in capsys.readouterr().out


def test_a_file_that_is_copied_by_a_link_is_changed_in_its_copy_only(tree, tmp_path):
    add_mutant(tree)
    mutants.link_tree(tree, tmp_path / "copy")
    mutant = mutants.read_mutant(tree / "tests/mutants/one.patch")
    mutants.apply(mutant, tmp_path / "copy")
    assert (tree / "core/tinymodule/__init__.py").read_text() == CODE
    assert (tmp_path / "copy/core/tinymodule/__init__.py").read_text() != CODE


@pytest.mark.usefixtures("own_server")
def test_compiled_code_is_left_behind_and_the_source_is_tested(tree, capsys, monkeypatch):
    add_mutant(tree)
    (tree / f"core/tinymodule/__init__{EXTENSION_SUFFIXES[0]}").write_text("no library")  # importing it would fail
    monkeypatch.setenv("PYTHONPATH", str(tree / "core"))
    assert mutants.main(["--root", str(tree)]) == 0
    assert "1 of 1 mutants caught" in capsys.readouterr().out


NOT_JUDGED: dict[str, dict[str, str]] = {
    "does not apply": {"before": "a << b"},
    "does not exist": {"test": "test_gone"},
    "does not pass on the unchanged code": {"test": "test_wrong"},
    "not marked with rule S1": {"test": "test_larger"},
    "not marked with rule S2": {"rule": "S1, S2"},
    "did not run": {"after": "("},
}
"""Why a mutant cannot be judged, and what makes it so."""


def test_a_mutant_that_cannot_be_judged_says_why(tree, capsys):
    for number, change in enumerate(NOT_JUDGED.values()):
        add_mutant(tree, f"mutant-{number}", **change)
    assert mutants.main(["--root", str(tree)]) == 1
    out = capsys.readouterr().out
    assert f"0 of {len(NOT_JUDGED)} mutants caught" in out
    for number, reason in enumerate(NOT_JUDGED):
        [line] = [line for line in out.partition("not caught:")[2].splitlines() if f"mutant-{number}" in line]
        assert line.startswith("BROKEN")
        assert reason in line


def test_a_patch_without_its_header_is_refused(tree, capsys):
    (tree / "tests/mutants/one.patch").write_text("Rule: S1\nTest: x\n\n--- a/x\n+++ b/x\n")
    assert mutants.main(["--root", str(tree)]) == 1
    assert "no line Fault:" in capsys.readouterr().err


def test_a_test_that_hangs_on_the_mutant_has_caught_it(tree, monkeypatch, capsys):
    monkeypatch.setattr(mutants, "SPARE_SECONDS", 1.0)
    monkeypatch.setattr(mutants, "TIMES", 1.0)
    add_mutant(tree, after="__import__('time').sleep(60)")
    assert mutants.main(["--root", str(tree)]) == 0
    assert "(the test did not end)" in capsys.readouterr().out


def test_one_that_is_too_slow_beside_others_is_tried_again_alone_with_twice_the_time(tree, tmp_path, monkeypatch):
    for name in ("slow", "survivor", "third"):
        add_mutant(tree, name, after="b > a")
    run, lock, running, ran = mutants.run_pytest, threading.Lock(), [0], []

    def slow_beside_others(server, where, arguments, seconds, **options):
        if options["compile_files"]:
            return run(server, where, arguments, seconds, **options)
        with lock:
            running[0] += 1
            ran.append((where.name, running[0], seconds, options["patience"]))
        code = run(server, where, arguments, seconds, **options)
        with lock:
            running[0] -= 1
        return None if where.name == "0" else code

    monkeypatch.setattr(mutants, "run_pytest", slow_beside_others)
    report = tmp_path / "mutants.json"
    assert mutants.main(["--root", str(tree), "--report", str(report), "--jobs", "3"]) == 1
    assert {one["mutant"]: one["verdict"] for one in json.loads(report.read_text())} == dict.fromkeys(
        ("slow", "survivor", "third"), "SURVIVED"
    )
    [(limit, patience)] = [(limit, patience) for name, _, limit, patience in ran if name == "0"]
    assert ran[-1] == ("alone", 1, 2 * limit, 2 * patience)
    assert len(ran) == 4


def test_what_a_test_takes_is_measured_with_the_start_of_pytest(tree, monkeypatch, shared_server):
    run = mutants.run_pytest

    def late(*arguments, **options):
        time.sleep(1.0)
        return run(*arguments, **options)

    monkeypatch.setattr(mutants, "run_pytest", late)
    test = "tests/test_tiny.py::test_smaller"
    found = mutants.try_unchanged(shared_server, tree, [test])[test]
    assert found.passed
    assert found.start > 1.0
    assert found.limit > mutants.SPARE_SECONDS + mutants.TIMES
    assert found.patience == mutants.SPARE_SECONDS + mutants.TIMES * found.seconds


DRAWING = """import os
import sys

import pytest
import tinymodule
from tests.seeds import SEED


@pytest.mark.rule("S1")
def test_drawn():
    with open({told!r}, "a") as file:
        print(SEED, os.environ["EPOCHAL_TEST_SEED"], hash("a"), file=file)
    assert tinymodule.smaller(1, 2) and not tinymodule.smaller(1, 1)
"""


@pytest.mark.usefixtures("own_server")
@pytest.mark.parametrize("seed", [None, "4711"])
def test_all_runs_draw_from_one_seed_that_may_be_given(tree, tmp_path, monkeypatch, seed):
    monkeypatch.delenv(mutants.SEED, raising=False)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed:
        monkeypatch.setenv(mutants.SEED, seed)
    told = tmp_path / "told"
    (tree / "tests/test_tiny.py").write_text(DRAWING.format(told=str(told)))
    add_mutant(tree, test="test_drawn")
    assert mutants.main(["--root", str(tree)]) == 0
    unchanged, changed = told.read_text().splitlines()
    command = [sys.executable, "-c", "print(hash('a'))"]
    hashed = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True).stdout
    assert unchanged.split() == [seed or mutants.FIXED_SEED, seed or mutants.FIXED_SEED, hashed.strip()]
    assert changed == unchanged


WAITING = """import os
import time

import pytest
import tinymodule
from tests.patience import PATIENCE


@pytest.mark.rule("S1")
def test_waits():
    with open({told!r}, "a") as file:
        print(PATIENCE, file=file)
    time.sleep(0.2)
    assert not tinymodule.smaller(1, 1)
"""


@pytest.mark.usefixtures("own_server")
def test_where_a_fault_makes_a_test_wait_in_vain_its_wait_ends_soon_and_elsewhere_never_sooner(
    tree, tmp_path, monkeypatch
):
    monkeypatch.delenv(mutants.PATIENCE, raising=False)
    told, found, run = tmp_path / "told", [], mutants.try_unchanged

    def kept(*given):
        found.append(run(*given))
        return found[-1]

    monkeypatch.setattr(mutants, "try_unchanged", kept)
    (tree / "tests/test_tiny.py").write_text(WAITING.format(told=str(told)))
    add_mutant(tree, test="test_waits")
    assert mutants.main(["--root", str(tree)]) == 0
    unchanged, changed = map(float, told.read_text().split())
    assert unchanged >= BASE
    [[baseline]] = [each.values() for each in found]
    assert baseline.seconds >= 0.2
    assert changed == pytest.approx(mutants.SPARE_SECONDS + mutants.TIMES * baseline.seconds, abs=0.1)


def test_what_a_test_may_wait_for_is_counted_as_it_counts_it():
    assert (mutants.PATIENCE, mutants.PATIENCE_SECONDS) == (VARIABLE, BASE)
