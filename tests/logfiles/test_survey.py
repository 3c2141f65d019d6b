"""`epochal log`, and the survey behind it: all that is wrong is told, and nothing is changed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer

from epochal.cli.commands.log import LogAction, log
from epochal.cli.options import Format
from epochal.errors import CorruptLog
from epochal.logfiles.survey import log_directories, owner_of, summarize, verify
from epochal.protocol.log.file_format import FOOTER_BYTES


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


@pytest.fixture
def filled(bench: Any) -> Any:
    """A closed log of several files, in two incarnations."""
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 60)
    with bench.begin(file_bytes=4096) as log:
        bench.fill(log, 30)
    return bench


def test_a_sound_log_is_sound_to_the_last_byte(filled: Any) -> None:
    checked = list(verify(filled.directory))
    assert sum(one.events for one in checked) == 90
    assert [one.path for one in checked] == filled.files()
    assert [one.index for one in checked] == ["sound"] * (len(checked) - 1) + ["none"]
    assert not any(one.damage or one.torn for one in checked)


def test_a_log_in_use_is_looked_at_without_harm(filled: Any) -> None:
    with filled.begin() as log:
        assert not any(one.damage for one in verify(filled.directory))
        filled.append(log, 10)
        assert sum(one.events for one in verify(filled.directory)) == 91


@pytest.mark.parametrize("seed", range(30))
def test_every_flipped_bit_is_found_where_it_is(filled: Any, seed: int) -> None:
    """Fault 29."""
    chance = random.Random(seed)
    paths = filled.files()
    path = chance.choice(paths[:-1])
    at = chance.randrange(path.stat().st_size)
    flip(path, at)
    (damaged,) = [one for one in verify(filled.directory) if one.damage]
    assert damaged.path == path
    assert any(damage.first <= at < damage.last for damage in damaged.damage)


def test_each_of_several_damages_is_reported(filled: Any) -> None:
    path = filled.files()[0]
    size = path.stat().st_size
    for at in (600, size // 2, size - 200):
        flip(path, at)
    (damaged,) = [one for one in verify(filled.directory) if one.damage]
    assert len(damaged.damage) == 3
    assert all("cannot be read" in damage.reason for damage in damaged.damage)


def test_an_unfinished_end_of_the_last_file_is_no_damage(filled: Any) -> None:
    path = filled.files()[-1]
    path.write_bytes(path.read_bytes()[:-5])
    last = list(verify(filled.directory))[-1]
    assert last.torn > 0
    assert not last.damage


def test_damage_in_the_middle_of_the_last_file_is_reported(filled: Any) -> None:
    path = filled.files()[-1]
    flip(path, path.stat().st_size // 2)
    (damaged,) = [one for one in verify(filled.directory) if one.damage]
    assert damaged.path == path
    with pytest.raises(CorruptLog):
        summarize(path, is_last=True)


def test_a_cut_and_a_missing_file_are_reported(filled: Any) -> None:
    paths = filled.files()
    paths[0].write_bytes(paths[0].read_bytes()[:-FOOTER_BYTES])
    paths[2].unlink()
    damaged = {one.path: str(one.damage[0]) for one in verify(filled.directory) if one.damage}
    assert set(damaged) == {paths[0], paths[3]}
    assert "footer" in damaged[paths[0]]
    assert "would be next" in damaged[paths[3]]


def test_a_stale_index_is_reported_and_is_no_damage(filled: Any) -> None:
    one, other = filled.files()[:2]
    other.with_suffix(".index").write_bytes(one.with_suffix(".index").read_bytes())
    checked = list(verify(filled.directory))
    assert [one.index for one in checked[:3]] == ["sound", "stale", "sound"]
    assert not any(one.damage for one in checked)


def test_each_file_says_what_it_holds(filled: Any) -> None:
    paths = filled.files()
    summaries = [summarize(path, is_last=path == paths[-1]) for path in paths]
    assert sum(one.events for one in summaries) == 90
    assert summaries[-1].incarnations == ((1, 0), (2, 60))
    assert [one.sealed for one in summaries] == [True] * len(paths), "the last one too: it was closed"
    assert [one.size for one in summaries] == [path.stat().st_size for path in paths]
    assert owner_of(filled.directory) == (2, "a test")
    assert owner_of(filled.directory.parent) == (0, "")


def test_all_logs_below_a_directory_are_found(filled: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "server.log").touch()
    assert log_directories(tmp_path) == log_directories(filled.directory) == [filled.directory]
    with pytest.raises(FileNotFoundError):
        log_directories(tmp_path / "nowhere")


# ---- the command ----


def test_inspect_shows_every_file(filled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert log(LogAction.INSPECT, filled.directory) == 0
    out = capsys.readouterr().out
    assert "Events:        0 to 89\n" in out
    assert "Incarnations:  1 from event 0, 2 from event 60\n" in out
    assert all(path.name in out for path in filled.files())


def test_inspect_prints_documents(filled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert log(LogAction.INSPECT, filled.directory, Format.JSON) == 0
    (document,) = json.loads(capsys.readouterr().out)["logs"]
    assert (document["incarnation"], document["instance"], document["problems"]) == (2, "a test", [])
    assert sum(file["events"] for file in document["files"]) == 90
    assert document["files"][1]["lower"] == [document["files"][1]["first"]]
    assert log(LogAction.INSPECT, filled.directory, Format.YAML) == 0
    assert capsys.readouterr().out.startswith("logs:\n- directory:")


def test_verify_ends_with_0_for_sound_logs_and_1_for_damaged_ones(
    filled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log(LogAction.VERIFY, filled.directory) == 0
    assert capsys.readouterr().err == ""
    flip(filled.files()[1], 1000)
    assert log(LogAction.VERIFY, filled.directory) == 1
    told = capsys.readouterr()
    assert told.out.count("  damaged\n") == 1
    assert told.err.startswith(f"error: {filled.files()[1]}: bytes ")
    assert log(LogAction.VERIFY, filled.directory, Format.JSON) == 1
    files = json.loads(capsys.readouterr().out)["logs"]
    (damage,) = files[1]["damage"]
    assert damage["first"] <= 1000 < damage["last"]
    assert log(LogAction.INSPECT, filled.directory) == 0, "it looks at the ends only"


def test_a_directory_without_logs_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log(LogAction.VERIFY, tmp_path) == 1
    assert "no log files" in capsys.readouterr().err
    with pytest.raises(typer.BadParameter):
        log(LogAction.VERIFY, tmp_path, Format.WIDE)
