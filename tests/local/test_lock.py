"""One local mode to a directory."""

import os
from pathlib import Path

import pytest

from epochal.errors import ConfigError
from epochal.local.mode import DirectoryLock


def test_a_second_holder_learns_of_the_first(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
            DirectoryLock(tmp_path).__enter__()
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
    with DirectoryLock(tmp_path):
        pass


def test_a_file_left_behind_does_not_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("999999999\n")
    with DirectoryLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_on_a_removed_file_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last holder removes the file between our open and our lock: we must lock the file that others will open."""
    real_open, opened = os.open, []

    def open_and_lose_the_first(path: Path, flags: int, mode: int) -> int:
        descriptor = real_open(path, flags, mode)
        opened.append(descriptor)
        if len(opened) == 1:
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose_the_first)
    with DirectoryLock(tmp_path):
        assert len(opened) == 2
        monkeypatch.undo()
        with pytest.raises(ConfigError):
            DirectoryLock(tmp_path).__enter__()
