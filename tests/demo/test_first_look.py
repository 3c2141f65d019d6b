"""`make try`: what it shows, twice in a row, and that nothing is left of it, also after Ctrl-C."""

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from examples.first_look import running
from tests.patience import PATIENCE
from tests.processes import marked

import component_lock

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "first_look.py"
WHOLE = {"0", "1", "2", "4", "5"}
"""The hours that are complete."""


def shown_by(name: str, printed: str) -> list[str]:
    """The lines of one command."""
    parts = [line.split(" | ") for line in printed.splitlines()]
    return [text for who, *rest in parts if who.strip() == name for text in rest]


@pytest.mark.rule("E4")
def test_twice_in_a_row_it_shows_whole_hours_and_none_in_part(environment: dict[str, str]) -> None:
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        followed = shown_by("sub", ended.stdout)
        assert {line.split("\t")[0] for line in followed if "\t" in line} == WHOLE
        assert [line for line in followed if "aborted" in line] == ["epoch 3 aborted: it will never be complete"]
        first, again = ["0 5", "1 5", "2 5"], ["0 5", "1 5", "2 5", "3 was aborted", "4 5", "5 5"]
        assert shown_by("program", ended.stdout) == [*first, *again]
        assert shown_by("writer", ended.stdout)[0] == 'appended {"delay": 99} at 3'


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_order(number: signal.Signals, environment: dict[str, str], tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, env=environment, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while b"epoch 0 complete" not in (line := await process.stdout.readline()):
            assert line, "it ended before an hour was complete"
        assert len(marked(str(tmp_path))) > 3
        os.killpg(process.pid, number)  # Ctrl-C reaches the whole group
        printed, error = await process.communicate()
    assert (process.returncode, error) == (130, b"")
    assert b"no process and no file is left" in printed


async def test_a_command_is_shown_to_its_end_also_past_empty_lines_and_bytes_that_are_no_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = r"import sys; sys.stdout.buffer.write(b'one\n\ntwo \xff\n' + b'three\n' * 50_000)"
    async with asyncio.timeout(PATIENCE), running("program", sys.executable, "-c", program, environment={}) as command:
        await command.succeed()
    assert command.lines[:4] == ["one", "", "two \ufffd", "three"]
    assert len(command.lines) == 50_003
    assert capsys.readouterr().out.startswith("  program | one\n")


def test_it_installs_what_local_mode_needs_and_nothing_heavy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = component_lock.requirements((ROOT / "requirements.lock").read_text())
    printed = subprocess.run(["make", "-n", "-B", "try"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in printed.splitlines() if "component_lock.py" in line)
    components = line.partition("component_lock.py ")[2].partition(" >")[0].split()
    assert project["optional-dependencies"]["local"] == ["epochal[catalog,publisher]"]
    assert {"catalog", "publisher"} <= set(components)
    roots = {root for component in components for root in component_lock.roots_of(project, component)}
    taken = set(component_lock.needed(entries, roots))
    assert {"aiohttp", "sqlalchemy", "hatchling", "editables"} <= taken
    assert taken & {"pyspark", "pyarrow", "pandas", "kubernetes", "mypy", "ruff", "pytest", "mkdocs-material"} == set()
    assert "--require-hashes" in printed
