"""Which logs may be removed, judged by what a catalog lists."""

from pathlib import Path

from epochal.local.removable_logs import NOTE, StreamLogs

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def directory(path: Path, *uids: str) -> Path:
    for uid in uids:
        (path / uid / "0").mkdir(parents=True)
    return path


def test_a_stream_that_its_catalog_knew_and_lists_no_more_was_deleted(tmp_path: Path) -> None:
    logs = StreamLogs(directory(tmp_path, A, B))
    assert logs.deleted("one", 5, {A, B}, follows=True) == []
    assert logs.deleted("one", 6, {A}, follows=True) == [tmp_path / B]
    assert StreamLogs(tmp_path).deleted("one", 7, (), follows=True) == [tmp_path / A, tmp_path / B]  # after a restart


def test_a_new_catalog_knows_nothing_of_what_it_does_not_list(tmp_path: Path, caplog) -> None:
    StreamLogs(directory(tmp_path, A, B)).deleted("one", 5, {A, B}, follows=True)
    logs = StreamLogs(tmp_path)
    assert logs.deleted("another", 900, (), follows=True) == []
    assert f"does not know the streams {A}, {B}" in caplog.text
    directory(tmp_path, C)
    assert logs.deleted("another", 901, {C}, follows=True) == []
    assert logs.deleted("another", 902, (), follows=True) == [tmp_path / C], (
        "of its own streams it says what became of them"
    )
    assert StreamLogs(tmp_path).deleted("another", 903, (), follows=True) == [tmp_path / C]


def test_an_older_copy_does_not_know_what_came_after_it(tmp_path: Path) -> None:
    logs = StreamLogs(directory(tmp_path, A))
    logs.deleted("one", 5, {A}, follows=True)
    directory(tmp_path, B)
    logs.deleted("one", 8, {A, B}, follows=True)
    assert logs.deleted("one", 6, {A}, follows=True) == []
    assert logs.deleted("one", 40, {A}, follows=True) == [], "nor when it has gone on since"
    assert logs.deleted("one", 41, (), follows=True) == [tmp_path / A]
    assert logs.deleted("one", 42, {A, B}, follows=True) == []
    assert logs.deleted("one", 43, {A}, follows=True) == [tmp_path / B], "once it lists it, it knows it"


def test_an_older_copy_that_has_gone_on_is_recognized_by_not_following_what_was_noted(tmp_path: Path) -> None:
    logs = StreamLogs(directory(tmp_path, A))
    logs.deleted("one", 5, {A}, follows=True)
    directory(tmp_path, B)
    logs.deleted("one", 8, {A, B}, follows=True)
    assert logs.revision == StreamLogs(tmp_path).revision == 8
    assert logs.deleted("one", 900, {A}, follows=False) == []
    assert logs.deleted("one", 901, {A}, follows=True) == [], "it never knew it"
    assert logs.deleted("one", 902, (), follows=True) == [tmp_path / A]


def test_what_was_there_before_anything_was_noted_is_kept(tmp_path: Path) -> None:
    assert StreamLogs(directory(tmp_path, A, B)).deleted("one", 5, {A}, follows=True) == []
    (tmp_path / NOTE).write_text("{")
    assert StreamLogs(tmp_path).deleted("one", 6, {A}, follows=True) == [], "or when the note cannot be read"
    (tmp_path / "mine").mkdir()
    assert StreamLogs(tmp_path).deleted("one", 7, (), follows=True) == [tmp_path / A], (
        "and what is no stream's is nobody's business"
    )


def test_nothing_is_removed_that_cannot_be_noted(tmp_path: Path) -> None:
    logs = StreamLogs(directory(tmp_path, A))
    logs.deleted("one", 5, {A}, follows=True)
    (tmp_path / "catalog.tmp").mkdir()  # where the note is written first
    assert logs.deleted("one", 6, (), follows=True) == []
