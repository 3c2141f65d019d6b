"""Where a database may be kept."""

from pathlib import Path

import pytest

from epochal.service import filesystems
from epochal_catalog.errors import DataDirectoryError
from epochal_catalog.storage.store import DataDirectory


def mounted(monkeypatch: pytest.MonkeyPatch, path: Path, kind: str) -> None:
    monkeypatch.setattr(filesystems, "mountinfo", lambda: f"30 1 0:40 / {path} rw shared:1 - {kind} source rw")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.s3fs", "9p"])
def test_a_file_system_that_loses_data_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, kind)
    with pytest.raises(DataDirectoryError, match=kind), DataDirectory(tmp_path):
        pass


def test_a_program_s_file_system_is_taken_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, "fuse.mergerfs")
    with (
        pytest.raises(DataDirectoryError, match=r"EPOCHAL_CATALOG_TRUST_FILE_SYSTEM=fuse\.mergerfs"),
        DataDirectory(tmp_path, "fuse.other"),
    ):
        pass
    with DataDirectory(tmp_path, "fuse.mergerfs"):
        pass
    mounted(monkeypatch, tmp_path, "nfs")
    with pytest.raises(DataDirectoryError), DataDirectory(tmp_path, "nfs"):
        pass


def test_a_directory_is_made_held_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataDirectory(path), pytest.raises(DataDirectoryError, match="in use by process"), DataDirectory(path):
        pass
    with DataDirectory(path):
        pass


def test_a_file_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot be used"), DataDirectory(tmp_path / "file"):
        pass
