"""The file of `epochal sub --save-cursor`: whole after a loss of power too."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import epochal as library
from epochal.cli.cursor_files import save_cursor


class Stood:
    """A subscription, as far as its cursor is concerned."""

    def cursor(self) -> "Stood":
        return self

    def to_json(self) -> str:
        return "{}"


def test_the_cursor_is_on_disk_before_it_has_its_name_and_its_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list[str]]] = []
    really = os.fsync

    def synced(descriptor: int) -> None:
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), sorted(os.listdir(tmp_path))))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    subscription: library.Subscription = Stood()  # type: ignore[assignment]  # nothing else of it is asked for
    save_cursor(tmp_path / "at.json", subscription)
    assert seen == [(str(tmp_path / "at.json.new"), ["at.json.new"]), (str(tmp_path), ["at.json"])]
    assert (tmp_path / "at.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("none/at.json", "No such file or directory; name a file in a directory that exists and can be written to"),
        ("held/at.json", "Not a directory; name a file in a directory that exists and can be written to"),
        ("beside", "this is no file; name one"),
        ("x" * 255, "File name too long; name a file in a directory"),
        ("x" * 256, "File name too long; name a file in a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_reported_before_anything_is_read(
    epochal: Any, tmp_path: Path, file: str, reason: str
) -> None:
    (tmp_path / "held").write_text("")
    (tmp_path / "beside").mkdir()
    result = epochal("sub", "demo/any", "--save-cursor", tmp_path / file, "--catalog", "http://127.0.0.1:1")
    assert (result.status, result.out) == (2, "")
    assert f"error: --save-cursor {tmp_path / file}: {reason}" in result.err
    assert sorted(os.listdir(tmp_path)) == ["beside", "held"]


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    subscription: library.Subscription = Stood()  # type: ignore[assignment]  # nothing else of it is asked for
    with pytest.raises(OSError, match="No space left") as caught:
        save_cursor(tmp_path / "at.json", subscription)
    assert caught.value.filename == str(tmp_path / "at.json")


@pytest.mark.parametrize("held", ["", '{"x":1}', "\xe9", "[]"])
def test_a_file_without_a_cursor_is_named_with_what_would_be_right(epochal: Any, tmp_path: Path, held: str) -> None:
    saved = tmp_path / "at.json"
    saved.write_text(held, encoding="latin-1")
    result = epochal("sub", "demo/any", "--since", saved)
    assert (result.status, result.out) == (2, "")
    assert f"error: {saved} does not hold a cursor; write one with --save-cursor {saved}" in result.err
    assert "Error" not in result.err
