"""`get` and `describe`: every format, every kind, and what holds time back in words."""

import contextlib
import io
import json
import re
import signal
import subprocess
import time

import pytest
import yaml
from tests.patience import PATIENCE

from epochal.catalog_api.blockers import HeldBack
from epochal.cli.description import print_stream
from epochal.cli.listed_kinds import SUBSCRIPTIONS
from epochal.local.child import console_script


def once_writers_have_left(run, stream: str) -> list[str]:
    """The rows of the stream's writers, once its publishers have reported that none is open: at their next renewal."""
    deadline = time.monotonic() + PATIENCE * 2
    while True:
        _, *rows = run("get", "writers", stream).out.splitlines()
        if all(row.split()[-1] == "no" for row in rows) or time.monotonic() > deadline:
            return rows
        time.sleep(0.1)


def test_one_stream_in_every_format(run, declared) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "-q").err == ""
    document = json.loads(run("get", "stream", stream, "-o", "json").out)
    assert (document["namespace"], document["name"]) == tuple(stream.split("/"))
    assert {"uid", "manifest", "segments", "held_back", "subscriptions"} <= document.keys()
    assert yaml.safe_load(run("get", "stream", stream, "-o", "yaml").out)["uid"] == document["uid"]
    listed = json.loads(run("get", "streams", "-n", "demo", "-o", "json").out)["items"]
    assert document["uid"] in [item["uid"] for item in listed]
    assert run("get", "streams", stream, "-o", "name").out == f"stream/{stream}\n"
    assert run("get", f"stream/{stream}", "-o", "name").out == f"stream/{stream}\n"
    header, row = run("get", "streams", stream, "-o", "wide").out.splitlines()
    assert header.endswith("TIMES  ENCODING  GENERATION  UID")
    assert row.endswith(document["uid"])


def test_the_kinds_beside_streams_are_those_of_the_named_stream(run, declared) -> None:
    stream, other = declared(segments=1), declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "--writer", "w1").status == 0
    assert run("pub", other, "-t", "3", "1", "--writer", "w2").status == 0
    (row,) = once_writers_have_left(run, stream)
    writer, of, session, is_open = row.split()
    assert (writer, of, session.isdigit(), is_open) == ("w1", stream, True, "no")
    assert {f"writer/{stream}/w1", f"writer/{other}/w2"} <= set(run("get", "writers", "-o", "name").out.split())
    (publisher,) = json.loads(run("get", "publishers", stream, "-o", "json").out)["items"]
    assert publisher["stream"] == stream
    assert publisher["addresses"]["ingest"] in run("get", "publishers", stream, "-o", "wide").out
    none = run("get", "subscriptions", stream)
    assert (none.status, none.out) == (0, "")
    assert "no subscriptions" in none.err
    assert run("get", "writers", "demo/nothing-here").status == 3


def test_a_reader_is_listed_with_what_was_sent_to_it_and_the_shares_of_what_was_not_wanted() -> None:
    counters = {"received_records": 1200, "received_bytes": 20_480, "unwanted_bytes": 5120, "firehose_bytes": 20}
    reader = {"subscriber": "r", "stream": "demo/x", "id": "1", "lower": [3], "since": "", "counters": counters}
    row = dict(zip(SUBSCRIPTIONS.header(wide=True), SUBSCRIPTIONS.row(reader, wide=True), strict=True))
    assert [row[title] for title in ("RECEIVED", "UNWANTED", "FIREHOSE", "RECORDS")] == [
        "20 KiB", "25 %", "<1 %", "1,200",
    ]  # fmt: skip
    of_an_earlier_version = {**reader, "counters": {"epochs": 3}}
    row = dict(zip(SUBSCRIPTIONS.header(wide=True), SUBSCRIPTIONS.row(of_an_earlier_version, wide=True), strict=True))
    assert [row[title] for title in ("RECEIVED", "UNWANTED", "FIREHOSE", "RECORDS")] == ["-"] * 4


def test_namespaces(run, declared, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = declared(segments=1)
    empty = run("get", "streams", "-n", "nothing-here")
    assert (empty.out, empty.err) == ("", "no streams in namespace nothing-here; -A lists those of all namespaces\n")
    monkeypatch.setenv("EPOCHAL_NAMESPACE", "nothing-here")
    assert run("get", "streams").out == ""
    assert f"stream/{stream}\n" in run("get", "streams", "-A", "-o", "name").out
    assert run("get", "streams", "-n", "demo", stream.removeprefix("demo/"), "-o", "name").out == f"stream/{stream}\n"
    assert run("describe", "stream", stream.removeprefix("demo/")).status == 3


def test_records_that_wait_where_no_writer_is_left_are_trouble(
    run, declared, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1").status == 0
    once_writers_have_left(run, stream)
    item = json.loads(run("describe", "stream", stream, "-o", "json").out)
    assert item["segments"][0]["counters"]["open_epochs"] == 1
    assert "Trouble:" not in run("describe", "stream", stream).out, "another may come at once"
    item["held_back"][0]["seconds"] = 61.0
    print_stream(item, wide=False)
    (line,) = [line for line in capfdbinary.readouterr().out.decode().splitlines() if line.startswith("Trouble:")]
    assert "records of 1 epoch wait, and no one is left" in line
    assert line.endswith(f"epochal pub {stream} --advance T")


def test_held_back_is_at_the_top_in_the_words_of_the_document(run, declared) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1").status == 0
    once_writers_have_left(run, stream)
    (held,) = json.loads(run("describe", "stream", stream, "-o", "json").out)["held_back"]
    assert held["words"] == HeldBack.from_json(held).words
    text = run("describe", "stream", stream).out
    line = next(line for line in text.splitlines() if line.startswith("Held back:"))
    assert text.index(line) < text.index("Spec:")
    assert line.split(":", 1)[1].strip().startswith("segment 0 is at 0: it has had no writer for")
    assert run("pub", stream, "--finish").status == 0
    assert "Held back:      nothing: it is complete" in run("describe", "stream", stream).out


def test_a_segment_shows_what_was_lost_and_what_waits(run, declared) -> None:
    stream = declared(segments=1, shape="(int, int)")
    (segment,) = (item := json.loads(run("describe", "stream", stream, "-o", "json").out))["segments"]
    assert (segment["below"], segment["counters"].get("waiting_bytes", 0)) == ([], 0)
    whole = run("describe", "stream", stream).out
    assert not re.search(r"^  (Lost|Waiting): ", whole, re.MULTILINE)
    segment.update(below=[[3, 4], [5, 0]], counters={"waiting_bytes": 12_345})
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        print_stream(item, wide=False)
    lines = dict(line.strip().split(":", 1) for line in shown.getvalue().splitlines() if ":" in line)
    assert lines["Lost"].strip() == "open epochs up to (3, 4), (5, 0): the previous publisher ended without its history"
    assert lines["Waiting"].strip() == "12,345 bytes of appends, until the catalog has recorded their times"


def test_the_bytes_of_history_are_said_to_be_those_in_memory(run, declared) -> None:
    """With storage they are 0 after a restart, and all is on disk."""
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1").status == 0
    (segment,) = json.loads(run("describe", "stream", stream, "-o", "json").out)["segments"]
    assert "history_bytes" in segment["counters"]
    assert re.findall("^  (History.*):", run("describe", "stream", stream).out, re.MULTILINE) == [
        "History bytes in memory"
    ]


def test_a_segment_shows_its_channels(run, declared) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "3", "1").status == 0
    item = json.loads(run("describe", "stream", stream, "-o", "json").out)
    (segment,) = item["segments"]
    assert segment["channels"] == []
    segment["channels"] = [
        {"filter": "everything", "subscribers": 1200, "share": 1.0, "coarse": 0},
        {"filter": "delay/ -delay/\x1b[2J", "subscribers": 2, "share": 0.0004, "coarse": 1},
    ]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        print_stream(item, wide=False)
    first, second = shown.getvalue().partition("Channel:")[2].splitlines()[:2]
    assert first.strip() == "everything: 1,200 of the subscribers, 100 % of the bytes"
    assert second.strip() == r"delay/ -delay/\x1b[2J: 2 of the subscribers, <1 % of the bytes, 1 coarse"


def test_a_watch_shows_what_changes_and_ends_by_ctrl_c(run, declared, catalog: str) -> None:
    stream = declared(segments=1)
    assert run("pub", stream, "-t", "1", "1", "--advance", "2").status == 0
    command = [console_script("epochal"), "get", "stream", stream, "--watch", "-o", "json", "--catalog", catalog]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["name"] == stream.removeprefix("demo/")
        assert run("pub", stream, "--advance", "7").status == 0
        while json.loads(watching.stdout.readline())["segments"][0]["lower"] != [7]:
            pass
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 130
    assert err == ""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["get", "writer5"], "'writer5' is no kind of object; did you mean writers?"),
        (["get", "subs"], "'subs' is no kind of object; did you mean subscriptions?"),
        (["get", "fares"], "if that is a stream, write: epochal get stream fares"),
        (["describe", "demo/delays"], "(there are: streams); if that is a stream, write: epochal describe stream demo"),
        (["delete", "demo/delays"], "if that is a stream, write: epochal delete stream demo/delays"),
        (["describe", "writers", "x"], "writers cannot be described; list them with: epochal get writers"),
        (["delete", "writers", "x"], "writers cannot be deleted; list them with: epochal get writers"),
    ],
)
def test_a_wrong_kind_is_refused_with_what_to_write(run, command: list[str], told: str) -> None:
    result = run(*command)
    assert (result.status, result.out) == (2, "")
    assert told in result.err


def test_a_misspelt_command_is_refused_with_the_nearest_one(run) -> None:
    assert "did you mean 'delete'" in run("delet").err.lower()
