"""`pub` and `sub` in full: files, what was published when something went wrong, filters, ends."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import time as clock
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.local.child import console_script


def epochs(run, stream: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("sub", stream, "--since", "start", "--epochs", "--json").out.splitlines()]


def test_files_are_published_by_their_fields(run, declared, tmp_path: Path) -> None:
    stream = declared()
    file = tmp_path / "x.jsonl"
    file.write_text('{"h": 1, "o": "JFK"}\n{"h": 1, "o": "EWR"}\n{"h": 2, "o": "JFK"}\n')
    result = run("pub", stream, "-f", file, "--time-field", "h", "--key-field", "o", "--in-order", "--linger", "0.01")
    assert (result.status, result.out) == (0, "")
    assert result.err.startswith("published 3 records at 2 times: demo/")
    assert "its latest epoch is not complete yet: `epochal pub demo/" in result.err
    assert run("pub", stream, "--complete", "-q").err == ""
    first, second = epochs(run, stream)
    assert (first["time"], sorted(record["o"] for record in first["records"])) == (1, ["EWR", "JFK"])
    assert (second["time"], second["records"]) == (2, [{"h": 2, "o": "JFK"}])


def test_headers_key_and_clock_go_with_the_records(run, declared) -> None:
    stream = declared(segments=1)
    for wrong, said in (("a", "NAME=VALUE"), ("=a", "NAME=VALUE")):
        result = run("pub", stream, "-t", "1", '"x"', "--header", wrong)
        assert result.status == 2
        assert said in result.err
    options = ("--header", "source=tower", "--header", "of=a=b", "--clock", "--key", "JFK", "--finish")
    assert run("pub", stream, "-t", "1", '"x"', *options).status == 0
    shown = [json.loads(line) for line in run("sub", stream, "--since", "start", "--json").out.splitlines()]
    (data,) = [line for line in shown if line["kind"] == "data"]
    assert (data["headers"], data["key"], data["records"]) == ({"source": "tower", "of": "a=b"}, "JFK", ["x"])
    assert abs(data["published"] / 1000 - clock.time()) < 600


def test_a_bad_line_of_a_file_publishes_nothing(run, declared, tmp_path: Path) -> None:
    stream = declared(segments=1)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("1\n")
    bad.write_text("2\n{oops\n")
    result = run("pub", stream, '"first"', "-f", good, "-f", bad, "-t", "1")
    assert (result.status, result.out) == (2, "")
    assert f"{bad}:2: is not JSON" in result.err
    assert run("pub", stream, "-t", "1", '"only"', "--finish").status == 0
    assert epochs(run, stream) == [{"kind": "epoch", "time": 1, "records": ["only"]}]


def test_a_text_is_published_only_as_one(run, declared) -> None:
    stream = declared("json", segments=1)
    result = run("pub", stream, "-t", "1", '{"delay": 3')
    assert (result.status, result.out) == (2, "")
    assert "argument:1: is not JSON: " in result.err
    assert "--text" in result.err
    assert run("pub", stream, "-t", "1", "--text", '{"delay": 3', "--finish").status == 0
    assert epochs(run, stream) == [{"kind": "epoch", "time": 1, "records": ['{"delay": 3']}]


def test_fields_that_are_declared_are_checked_before_anything_is_published(run, manifest, tmp_path: Path) -> None:
    text = manifest("checked", encoding="json", segments=1).replace(
        "encoding: json", "encoding: json, schema: {fields: [{name: delay, type: int32, nullable: false}]}"
    )
    assert run("apply", "-f", "-", stdin=text).status == 0
    file = tmp_path / "x.jsonl"
    file.write_text('{"delay": 1}\n{"delay": "late"}\n')
    result = run("pub", "demo/checked", "-t", "1", "-f", file)
    assert (result.status, result.out) == (2, "")
    assert f"{file}:2: its field delay must be int32, not the text 'late'" in result.err
    assert "its field delay is missing" in run("pub", "demo/checked", "-t", "1", "{}").err
    assert run("pub", "demo/checked", "-t", "1", '{"delay": 2}', "--finish").status == 0
    assert epochs(run, "demo/checked") == [{"kind": "epoch", "time": 1, "records": [{"delay": 2}]}]
    assert run("delete", "stream", "demo/checked").status == 0


def test_a_record_that_is_too_large_is_named_and_many_that_are_not_are_divided(run, declared, tmp_path: Path) -> None:
    stream = declared("bytes", segments=1)
    file = tmp_path / "x"
    file.write_bytes(b"small\n" + b"x" * (17 << 20) + b"\n")
    result = run("pub", stream, "-t", "1", "-f", file)
    assert result.status == 2
    assert f"{file}:2: " in result.err
    assert f"1 record is published (up to {file}:1)" in result.err
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    stream = declared("json", segments=1)
    pq.write_table(pa.table({"text": ["x" * 100_000] * 400}), tmp_path / "x.parquet")
    assert run("pub", stream, "-t", "1", "-f", tmp_path / "x.parquet", "--finish").status == 0
    (epoch,) = epochs(run, stream)
    assert len(epoch["records"]) == 400


def test_what_advance_leaves_open_is_said(run, declared) -> None:
    stream = declared("json", segments=1)
    result = run("pub", stream, "-t", "3", "1", "--advance", "3")
    assert result.status == 0
    assert "time 3 stays open: --advance 3 promises no more before 3, not at it" in result.err
    assert "stays open" not in run("pub", stream, "-t", "3", "1", "--advance", "4").err


def test_who_keeps_open_what_was_advanced_past_is_said(run, declared, catalog: str) -> None:
    stream = declared("json", segments=2)
    with epochal.connect_blocking(catalog) as client, client.writer(stream, writer_id="A"):
        said = r"time 11 is not complete yet: writer A at segment [01] holds 0, last heard \d+\.\d s ago\n"
        assert re.search(said, run("pub", stream, "-t", "11", "1", "--advance", "12").err)
        assert "what is before 13 is not complete yet: writer A" in run("pub", stream, "--advance", "13").err
        assert "complete" not in run("pub", stream, "-t", "20", "1", "--advance", "14", "--quiet").err
    assert "complete" not in run("pub", stream, "-t", "21", "1", "--advance", "22").err


def test_a_bad_line_of_standard_input_is_reported_with_what_was_published(declared, run, catalog: str) -> None:
    stream = declared(segments=1)
    command = [console_script("epochal"), "pub", stream, "-t", "1", "--advance", "2", "--catalog", catalog]
    result = subprocess.run(command, input=b"1\n2\nno\n4\n", capture_output=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stdout) == (2, b"")
    told, error = result.stderr.decode().splitlines()
    assert told == "2 records are published (up to standard input:2); nothing was advanced or finished"
    assert error.startswith("error: standard input:3: is not JSON")
    assert run("pub", stream, "-t", "1", "3", "--finish").status == 0
    assert epochs(run, stream) == [{"kind": "epoch", "time": 1, "records": [1, 2, 3]}]


def test_ctrl_c_keeps_what_was_read(declared, run, catalog: str) -> None:
    stream = declared(segments=1)
    command = [console_script("epochal"), "pub", stream, "-t", "1", "--catalog", catalog]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as pub:
        assert pub.stdin is not None
        pub.stdin.write(b"1\n2\n")
        pub.stdin.flush()
        follow = [console_script("epochal"), "sub", stream, "--since", "start", "--count", "2", "--catalog", catalog]
        subprocess.run(follow, capture_output=True, timeout=PATIENCE, check=True)
        pub.send_signal(signal.SIGINT)
        _, err = pub.communicate(timeout=PATIENCE)
    assert pub.returncode == 130
    assert err == b"2 records are published (up to standard input:2); nothing was advanced or finished\n"
    assert run("pub", stream, "--finish").status == 0
    assert epochs(run, stream) == [{"kind": "epoch", "time": 1, "records": [1, 2]}]


def test_wait_reports_each_record_before_the_next_is_read(declared, run, catalog: str) -> None:
    """What is told on standard output is published, whatever becomes of the command."""
    stream = declared(segments=1)
    command = [console_script("epochal"), "pub", stream, "--time-field", "h", "--wait", "--catalog", catalog]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pub:
        assert pub.stdin is not None
        assert pub.stdout is not None
        told = []
        for hour in (1, 1, 2):
            pub.stdin.write(json.dumps({"h": hour}).encode() + b"\n")
            pub.stdin.flush()
            told.append(json.loads(pub.stdout.readline()))  # while standard input stays open
        pub.kill()
    assert [line["where"] for line in told] == ["standard input:1", "standard input:2", "standard input:3"]
    assert [line["time"] for line in told] == [1, 1, 2]
    assert all(before["position"] < after["position"] for before, after in itertools.pairwise(told))
    shown = run("sub", stream, "--since", "start", "--count", "3", "--raw")
    assert shown.out == '{"h": 1}\n{"h": 1}\n{"h": 2}\n'


def test_wait_stops_at_what_is_wrong_and_says_up_to_where(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    command = [console_script("epochal"), "pub", stream, "-t", "1", "--wait", "--catalog", catalog]
    result = subprocess.run(command, input=b"1\n2\nno\n", capture_output=True, timeout=PATIENCE, check=False)
    told = [json.loads(line)["where"] for line in result.stdout.splitlines()]
    assert (result.returncode, told) == (2, ["standard input:1", "standard input:2"])
    assert b"2 records are published (up to standard input:2)" in result.stderr
    assert run("pub", stream, "-t", "1", "--wait", "-q", "3", "--finish").out == ""
    assert epochs(run, stream) == [{"kind": "epoch", "time": 1, "records": [1, 2, 3]}]
    assert "exclude each other" in run("pub", stream, "-t", "1", "--wait", "--linger", "1", "x").err


def test_rows_of_an_arrow_stream(run, declared, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stream = declared("arrow", segments=1)
    parquet.write_table(pa.table({"h": [1, 1, 2], "o": ["JFK", "EWR", "JFK"]}), tmp_path / "x.parquet")
    published = run("pub", stream, "-f", tmp_path / "x.parquet", "--time-field", "h", "--key-field", "o")
    assert published.err.startswith("published 3 records at 2 times")
    assert run("pub", stream, "-t", "2", '{"h": 2, "o": "LGA"}', "--finish").status == 0
    assert [epoch["records"] for epoch in epochs(run, stream)] == [
        [{"h": 1, "o": "JFK"}, {"h": 1, "o": "EWR"}],
        [{"h": 2, "o": "JFK"}, {"h": 2, "o": "LGA"}],
    ]
    assert run("sub", stream, "--since", "start", "--count", "1", "--raw").out == '{"h": 1, "o": "JFK"}\n'


def test_topics_choose(run, declared) -> None:
    stream = declared("json", segments=1)
    for topic in ("delay/JFK", "delay/EWR", "gate/JFK"):
        assert run("pub", stream, "-t", "1", f'"{topic}"', "--topic", topic).status == 0
    assert run("pub", stream, "--finish").status == 0
    chosen = run("sub", stream, "--since", "start", "--raw", "--topic", "delay/", "--reject", "delay/EWR")
    assert chosen.out == '"delay/JFK"\n'


def test_a_saved_cursor_loses_nothing_of_a_batch_that_the_count_cut(run, declared, tmp_path: Path) -> None:
    stream, saved = declared("json", segments=1), tmp_path / "at.json"
    assert run("pub", stream, "-t", "1", "1", "2", "3").status == 0
    assert run("pub", stream, "-t", "1", "4", "--finish").status == 0
    cut = run("sub", stream, "--since", "start", "--raw", "--count", "2", "--save-cursor", saved)
    assert cut.out == "1\n2\n"
    assert run("sub", stream, "--since", saved, "--raw").out == "1\n2\n3\n4\n"
    assert run("sub", stream, "--since", "start", "--epochs", "--count", "1", "--save-cursor", saved).status == 0
    assert run("sub", stream, "--since", saved, "--raw").out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_cursor(run, declared, tmp_path: Path, number: signal.Signals) -> None:
    stream, saved = declared("json", segments=1), tmp_path / "at.json"
    assert run("pub", stream, "-t", "1", "1", "--advance", "2").status == 0
    command = [
        console_script("epochal"),
        "sub",
        stream,
        "--since",
        "start",
        "--epochs",
        "--raw",
        "--save-cursor",
        saved,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sub:
        assert sub.stdout is not None
        assert sub.stdout.readline() == b"1\n"
        sub.send_signal(number)
        _, err = sub.communicate(timeout=PATIENCE)
    assert (sub.returncode, err) == (128 + number, b"epoch 1 complete\n")
    assert run("pub", stream, "-t", "2", "2", "--finish").status == 0
    assert run("sub", stream, "--since", saved, "--epochs", "--raw").out == "2\n"


def test_a_signal_that_is_ignored_ends_nothing(run, declared) -> None:
    """As with nohup."""
    stream = declared("json", segments=1)
    assert run("pub", stream, "-t", "1", "1", "--advance", "2").status == 0
    line = f"trap '' HUP; exec {console_script('epochal')} sub {stream} --since start --epochs --raw"
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE) as sub:
        assert sub.stdout is not None
        assert sub.stdout.readline() == b"1\n"
        sub.send_signal(signal.SIGHUP)
        assert run("pub", stream, "-t", "2", "2", "--advance", "3").status == 0
        assert sub.stdout.readline() == b"2\n"
        sub.terminate()
        assert sub.wait(timeout=PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.rule("E20")
def test_since_a_time_a_number_and_a_frontier(run, declared) -> None:
    stream, pairs = declared("json", segments=1), declared("json", segments=2)
    for time in (1, 2, 3):
        assert run("pub", stream, "-t", str(time), str(time), "--advance", str(time + 1)).status == 0
    assert run("pub", stream, "--finish").status == 0
    assert run("sub", stream, "--since", "time:1", "--epochs", "--raw").out == "2\n3\n"
    assert run("sub", stream, "--since", "frontier:[3]", "--raw").out == "3\n"
    assert run("sub", stream, "--since", "seq:-1", "--raw", "--poll", "0.05").out == "1\n2\n3\n"
    for wrong, told in [
        ("time:noon", "time:T, with an int"),
        ("seq:-5", "no event's number"),
        ("x", "there is no file x"),
    ]:
        result = run("sub", stream, "--since", wrong)
        assert (result.status, result.out) == (2, "")
        assert told in result.err
    result = run("sub", pairs, "--since", "seq:1")
    assert (result.status, "one segment; this one has 2" in result.err) == (2, True)


@pytest.mark.rule("E17")
def test_what_was_lost_for_good_is_printed_while_no_epoch_comes_and_before_the_next(run, services) -> None:
    stream = asyncio.run(services.stream(progress={"writerTimeout": "1s"}, dedicated=True))
    (victim,) = services.publishers(stream)
    command = [console_script("epochal"), "sub", stream, "--since", "start", "--epochs", "--idle", "20"]
    with (
        subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as json_sub,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as text_sub,
    ):
        assert json_sub.stdout is not None
        assert text_sub.stderr is not None
        try:
            assert run("pub", stream, "-t", "1", "1", "--advance", "2").status == 0
            assert json.loads(json_sub.stdout.readline()) == {"kind": "epoch", "time": 1, "records": [1]}
            assert text_sub.stderr.readline() == b"epoch 1 complete\n"
            os.kill(victim, signal.SIGKILL)
            gap = json.loads(json_sub.stdout.readline())
            assert (gap["kind"], gap["segment"]) == ("gap", "0")
            shown = text_sub.stderr.readline().decode()
            assert shown.startswith(
                f"gap: segment 0, incarnation {gap['incarnation']}, seq {gap['seq']}: events were lost"
            )
            after = max(gap["below"], default=1) + 1
            assert run("pub", stream, "-t", str(after), "2", "--finish").status == 0
            assert json.loads(json_sub.stdout.readline()) == {"kind": "epoch", "time": after, "records": [2]}
            assert (json_sub.wait(timeout=PATIENCE), text_sub.wait(timeout=PATIENCE)) == (0, 0)
        finally:
            json_sub.kill()
            text_sub.kill()


def test_an_idle_subscription_ends(run, declared) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "1", "1").status == 0
    plain = run("sub", stream, "--since", "start", "--idle", "2")
    assert (plain.status, plain.out) == (0, "1\t1\n")
    wanted = run("sub", stream, "--since", "start", "--idle", "2", "--count", "3")
    assert (wanted.status, wanted.out) == (4, "1\t1\n")
    assert "1 of 3 records came, then none for 2 s" in wanted.err


def test_a_reader_that_goes_ends_the_subscription_at_once(run, declared, catalog: str) -> None:
    """Also when nothing more is ever published, so that no write could find out."""
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "1", "1").status == 0
    line = f"{console_script('epochal')} sub {stream} --since start --catalog {catalog}"
    script = f"{line} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, timeout=PATIENCE, check=True)
    assert result.stdout == b"1\t1\n141\n"
    assert b"rror" not in result.stderr


@pytest.mark.parametrize("command", ["get streams", "sub {stream} --since start --count 3", "completion bash"])
def test_a_reader_that_leaves_is_distinguished_from_a_failure(run, declared, catalog: str, command: str) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "1", "--text", *"abc").status == 0
    line = f"EPOCHAL_CATALOG={catalog} {console_script('epochal')} {command.format(stream=stream)}"
    script = f"{line} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, timeout=PATIENCE, check=True)
    assert (result.stdout, b"rror" in result.stderr) == (b"141\n", False)
