"""The file of `epochal sub --save-cursor`: whole after a loss of power too."""

import os
from pathlib import Path

import pytest

import epochal
from epochal.cli.commands.sub import _save


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
    subscription: epochal.Subscription = Stood()  # type: ignore[assignment]  # nothing else of it is asked for
    _save(tmp_path / "at.json", subscription)
    assert seen == [(str(tmp_path / "at.json.new"), ["at.json.new"]), (str(tmp_path), ["at.json"])]
    assert (tmp_path / "at.json").read_text() == "{}"
