"""Where a database may be kept."""

from pathlib import Path

import pytest

from epochal_catalog import datadir
from epochal_catalog.datadir import DataDirectory, file_system_of
from epochal_catalog.errors import DataDirectoryError

MOUNTS = [
    "/dev/sda1 / ext4 rw 0 0",
    "server:/x /srv/my\\040data nfs4 rw 0 0",
    "tmpfs /srv tmpfs rw 0 0",
    "bucket /mnt/bucket fuse.s3fs rw 0 0",
    "",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib", "ext4"), ("/srv/my data/a", "nfs4"), ("/srv/mydata", "tmpfs"), ("/mnt/bucket", "fuse.s3fs")],
)
def test_the_innermost_mount_decides(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.s3fs", "9p"])
def test_a_file_system_that_loses_data_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datadir, "_mounts", lambda: [f"x {tmp_path} {kind} rw 0 0"])
    with pytest.raises(DataDirectoryError, match=kind), DataDirectory(tmp_path):
        pass


def test_a_directory_is_made_held_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataDirectory(path), pytest.raises(DataDirectoryError, match="in use by process"), DataDirectory(path):
        pass
    with DataDirectory(path):
        pass


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot be used"), DataDirectory(tmp_path / "file"):
        pass
