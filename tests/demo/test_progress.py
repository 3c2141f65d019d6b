"""What takes minutes is made side by side, and says what it is doing."""

import os
import re
from pathlib import Path

import pytest
from tests.cluster.harness.progress import CommandError, side_by_side


def test_commands_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other: one after the other, they would never end."""
    os.mkfifo(tmp_path / "meet")
    said: list[str] = []
    meet = tmp_path / "meet"
    side_by_side({"one": ["sh", "-c", f"echo hello; echo > {meet}"], "other": ["cat", meet]}, said.append)
    assert "one: hello" in said
    assert {re.sub(r"\d+", "N", line) for line in said if "done" in line} == {"one: done, N s", "other: done, N s"}


def test_one_that_says_nothing_is_reported_with_its_last_line_and_since_when(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "under way" in line and sum("under way" in each for each in said) == 2:  # it is said again and again
            (tmp_path / "go").write_text("now")

    side_by_side({"images": ["sh", "-c", f"echo building spark; cat {tmp_path / 'go'} > /dev/null"]}, say, every=0.01)
    silent = [line for line in said if "under way" in line]
    assert len(silent) >= 2
    assert re.fullmatch(r"images: under way for \d+ s; last: (building spark|begun)", silent[0])
    assert "images: building spark" in said
    assert said[-1].startswith("images: done, ")


def test_one_that_fails_ends_the_others_with_all_that_they_started(tmp_path: Path) -> None:
    """The pipe ends when nobody has it open any more."""
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    long = ["sh", "-c", f"exec 3> {tmp_path / 'held'}; echo holds; sleep 1000 & wait"]
    os.mkfifo(tmp_path / "fail")
    fails = ["sh", "-c", f"cat {tmp_path / 'fail'}; echo no space left; exit 3"]
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line == "programs: holds":
            (tmp_path / "fail").write_text("")

    with pytest.raises(CommandError, match=r"images: failed after \d+ s \(exit status 3\)"):
        side_by_side({"programs": long, "images": fails}, say)
    assert "images: no space left" in said
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end of the pipe: no writer is left
    os.close(reader)
