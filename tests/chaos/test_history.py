"""A history outlives the process that wrote it, to the last line."""

import asyncio
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from tests.chaos import history
from tests.chaos.history import Entry, Phase, Recorder, digest, read, read_file, times, watched
from tests.patience import PATIENCE


def _write_and_die(directory: Path) -> None:
    recorder = Recorder(directory, "w1", life=3)
    for number in range(1000):
        recorder.write("append", Phase.INVOKE, ids=[number], time=times([(1, 2)])[0])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(tmp_path,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    entries = read_file(tmp_path / "w1.jsonl")
    assert [entry.data["ids"] for entry in entries] == [[number] for number in range(1000)]
    assert {(entry.actor, entry.life, entry.phase, entry.time()) for entry in entries} == {
        ("w1", 3, Phase.INVOKE, (1, 2))
    }


def test_several_files_are_one_history_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    early, late = Recorder(tmp_path, "b"), Recorder(tmp_path, "a")
    early.write("ready", frontier=[])
    late.write("end")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('[1.0,"a",0,"en')
    assert [(entry.actor, entry.op) for entry in read(tmp_path)] == [("b", "ready"), ("a", "end")]
    assert read_file(tmp_path / "nobody.jsonl") == []
    early.close()
    late.close()


async def test_a_loop_that_was_late_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOOK_SECONDS", 0.01)
    recorders = [Recorder(tmp_path, name) for name in ("one", "two")]
    async with watched(*recorders):
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        time.sleep(1.2)  # noqa: ASYNC251 - that is what is to be seen
        await asyncio.sleep(0.05)
    for recorder in recorders:
        recorder.close()
        lines = read_file(tmp_path / f"{recorder.actor}.jsonl")
        assert {line.op for line in lines} == {"stalled"}
        (longest,) = [line for line in lines if line.data["seconds"] > 1.1]
        assert longest.at >= begun + 1.2, "written once it is over"


def test_an_entry_is_one_line_and_comes_back() -> None:
    entry = Entry(1.5, "w1", 0, "leave", Phase.OK, {"held": [[1, 2]], "n": 7})
    assert Entry.from_json(entry.to_json()) == entry
    assert "\n" not in entry.to_json()


def test_a_digest_is_of_id_and_filling() -> None:
    assert len({digest(["a", b"x"]), digest(["b", b"x"]), digest(["a", b"y"])}) == 3
