"""A superseded publisher that is started again whatever its exit status: with a mark it takes nothing back."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.publisher.counting_catalog import COMMAND as COUNTING

from epochal_publisher.segments.superseded_marker import find_mark, leave_mark


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the first publisher leaves its mark; as on two nodes, the others know nothing of it."""
    path = tmp_path / "superseded"
    monkeypatch.setenv("EPOCHAL_PUBLISHER_SUPERSEDED_MARK", str(path))
    return path


@pytest.mark.rule("E12")
def test_a_superseded_publisher_that_is_started_again_leaves_the_winner_its_segments(
    start: Any, wires: Any, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, loser = start()
    assert not mark.exists()
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv("EPOCHAL_PUBLISHER_SUPERSEDED_MARK")
        winner = stream.start()
    try:
        assert loser.ended() == 3
        assert "registered anew" in mark.read_text()
        before = stream.segment()
        for _ in range(3):
            again = stream.start(wait=False)
            assert again.ended() == 3
        *_, line = again.log.read_text().splitlines()
        assert "not started again" in line
        assert str(mark) in line
        assert "registered anew" in line
        after = stream.segment()
        assert [after[key] for key in ("incarnation", "publisher")] == [
            before[key] for key in ("incarnation", "publisher")
        ]
        assert wires.writer(winner, stream).open().incarnation == 2
    finally:
        winner.stop()


def test_once_the_mark_is_gone_it_serves_again(declare: Any, mark: Path) -> None:
    stream = declare()
    mark.write_text("superseded\n")
    assert stream.start(wait=False).ended() == 3
    mark.unlink()
    publisher = stream.start()
    assert stream.segment()["incarnation"] == 1
    publisher.signal(signal.SIGTERM)
    assert publisher.ended() == 0
    assert not mark.exists(), "a stop is no defeat"


def test_a_catalog_that_lost_its_database_leaves_no_mark(
    process: Any, at_catalog: Any, tmp_path: Path, mark: Path
) -> None:
    def catalog(data: str, port: str) -> Any:
        return process.start(
            tmp_path / "catalog.log", *COUNTING, "serve", "--port", port, "--data", str(tmp_path / data)
        )

    first = catalog("one", "0")
    port = first.ready.rsplit(":", 1)[1]
    publisher = at_catalog(first.ready, "lost").start()
    first.stop()
    second = catalog("two", port)
    try:
        at_catalog(second.ready, "lost")
        assert publisher.ended() == 3
        assert not mark.exists()
    finally:
        second.stop()
        publisher.stop()


def test_a_disk_that_takes_no_mark_is_told_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "missing" / "superseded"
    leave_mark(missing, "superseded")
    assert str(missing) in caplog.text
    assert find_mark(missing) is None


def test_without_a_setting_there_is_no_mark() -> None:
    leave_mark(None, "superseded")
    assert find_mark(None) is None
