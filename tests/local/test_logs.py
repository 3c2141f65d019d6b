"""Logs that cannot fill a disk."""

from pathlib import Path

from epochal.local.child import BoundedLog, tail


def test_two_files_bound_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "x" / "a.log"
    log = BoundedLog(path, 1000)
    for number in range(1000):
        log.write(f"line {number}\n".encode())
    log.close()
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["a.log", "a.log.1"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert tail(path, 2) == "line 998\nline 999"


def test_a_chunk_larger_than_the_file_keeps_its_end(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "a.log", 10)
    log.write(b"x" * 100 + b"end")
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"x" * 7 + b"end"


def test_goes_on_where_it_ended(tmp_path: Path) -> None:
    for word in (b"a", b"b"):
        log = BoundedLog(tmp_path / "a.log", 10)
        log.write(word)
        log.close()
    assert (tmp_path / "a.log").read_bytes() == b"ab"


def test_no_log_has_no_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == ""
