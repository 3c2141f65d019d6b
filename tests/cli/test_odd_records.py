"""Records that are unusual: what `pub` takes `sub` prints, and what cannot be printed holds up nothing after it."""

import asyncio
import datetime
import functools
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.patience import PATIENCE

import epochal
from epochal.client.encoding.encodings import MAX_NESTING
from epochal.local.child import console_script


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def published(url: str, stream: str, payloads: Sequence[bytes | list[Any]]) -> None:
    """Publish each at a time of its own, from 1; bytes are payloads as an earlier or another writer could make them."""

    async def publish() -> None:
        async with epochal.connect(url) as client, client.writer(stream) as writer:
            encode = writer._encode
            for time, given in enumerate(payloads, 1):
                if isinstance(given, bytes):
                    writer._encode = functools.partial(lambda payload, records: payload, given)
                await writer.append(time, [None] if isinstance(given, bytes) else given)
                writer._encode = encode
            await writer.finish()

    asyncio.run(publish())


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_record_that_is_nested_too_deep_is_named_and_nothing_is_published(
    run, declared, tmp_path: Path, encoding: str
) -> None:
    stream = declared(encoding, segments=1)
    file = tmp_path / "x.jsonl"
    for levels in (MAX_NESTING + 1, 600):
        file.write_text(f"1\n{nested(levels)}\n")
        result = run("pub", stream, "-t", "1", "-f", file)
        assert (result.status, result.out) == (2, "")
        assert f"error: {file}:2: has more than {MAX_NESTING} lists and mappings within each other" in result.err
    file.write_text(f"1\n{nested(MAX_NESTING)}\n")
    assert run("pub", stream, "-t", "1", "-f", file, "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--epochs", "--raw").out == f"1\n{nested(MAX_NESTING)}\n"


def test_a_value_that_cannot_be_written_is_named_and_nothing_of_its_file_is_published(
    run, declared, tmp_path: Path
) -> None:
    stream = declared("msgpack", segments=1)
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"k": "a"}}\n{{"k": "b"}}\n{{"k": "a", "n": {2**64}}}\n')
    result = run("pub", stream, "-t", "1", "-f", file, "--key-field", "k")
    assert result.status == 2
    assert f"{file}:3: a record cannot be written as msgpack" in result.err
    assert run("pub", stream, "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--raw").out == ""


def test_lines_of_standard_input_before_one_that_cannot_be_written_are_published(run, declared, catalog: str) -> None:
    """Whatever their keys, so that the line that is named is the first that is missing."""
    stream = declared("msgpack", segments=1)
    lines = [{"k": "a"}, {"k": "b"}, {"k": "a", "n": 2**64}, {"k": "b", "n": 4}]
    command = [console_script("epochal"), "pub", stream, "-t", "1", "--key-field", "k", "--catalog", catalog]
    given = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    result = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE, check=False)
    assert result.returncode == 2
    assert b"2 records are published (up to standard input:2)" in result.stderr
    assert b"error: standard input:3: a record cannot be written as msgpack" in result.stderr
    assert run("pub", stream, "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--raw").out == '{"k": "a"}\n{"k": "b"}\n'


@pytest.mark.parametrize("options", [("--epochs",), ()])
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_what_earlier_writers_nested_deeper_is_printed_all_the_same(
    run, declared, catalog: str, encoding: str, options: tuple[str, ...]
) -> None:
    stream = declared(encoding, segments=1)
    record = json.loads(nested(600))
    payload = msgpack.packb([record]) if encoding == "msgpack" else f"[{nested(600)}]".encode()
    published(catalog, stream, [payload, ["after"]])
    shown = run("sub", stream, "--since", "start", *options)
    assert (shown.status, shown.out) == (0, f'1\t{nested(600)}\n2\t"after"\n')
    as_json = run("sub", stream, "--since", "start", "--json", *options)
    assert as_json.status == 0
    assert nested(600) in as_json.out


def test_what_cannot_be_read_holds_up_nothing_after_it_and_is_said(run, declared, catalog: str) -> None:
    stream = declared("json", segments=1)
    published(catalog, stream, [["before"], b"{no json", ["after"]])
    shown = run("sub", stream, "--since", "start", "--epochs")
    assert (shown.status, shown.out) == (1, '1\t"before"\n3\t"after"\n')
    assert "epoch 2 cannot be shown: a payload is not json" in shown.err
    assert "1 epochs could not be shown" in shown.err
    assert "epoch 2 complete" not in shown.err
    shown = run("sub", stream, "--since", "start", "--raw")
    assert (shown.status, shown.out) == (1, '"before"\n"after"\n')
    assert "at time 2 cannot be shown: a payload is not json" in shown.err
    shown = run("sub", stream, "--since", "start", "--json", "--epochs")
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [(line["kind"], line["time"]) for line in lines] == [("epoch", 1), ("unreadable", 2), ("epoch", 3)]
    assert "not json" in lines[1]["reason"]
    (line,) = [
        line
        for line in map(json.loads, run("sub", stream, "--since", "start", "--json").out.splitlines())
        if line["kind"] == "unreadable"
    ]
    assert {"time", "topic", "segment", "seq", "reason"} <= line.keys()
    counted = run("sub", stream, "--since", "start", "--epochs", "--count", "2", "--raw")
    assert counted.out == '"before"\n"after"\n'


def test_every_value_of_msgpack_is_printed(run, declared, catalog: str) -> None:
    stream = declared("msgpack", segments=1)
    records = [
        float("nan"), float("-inf"), 2**64 - 1, b"\xff", {1: "a", "1": "b"}, {2.5: 3, None: 4}, {b"\xff": True},
    ]  # fmt: skip
    published(catalog, stream, [records])
    shown = [line.split("\t")[1] for line in run("sub", stream, "--since", "start").out.splitlines()]
    assert shown == [
        '"NaN"', '"-Infinity"', "18446744073709551615", "\\xff", '[[1, "a"], ["1", "b"]]', '{"2.5": 3, "null": 4}',
        '{"\\\\xff": true}',
    ]  # fmt: skip


def test_every_value_of_arrow_is_printed(run, declared, catalog: str) -> None:
    stream = declared("arrow", segments=1)
    far = pa.array([10**7], pa.int32()).cast(pa.date32())
    batch = pa.record_batch(
        {
            "far": far,
            "fars": pa.ListArray.from_arrays([0, 1], far),
            "nano": pa.array([1], pa.int64()).cast(pa.time64("ns")),
            "at": pa.array([10**18], pa.timestamp("us")),
            "day": [datetime.date(2024, 1, 1)],
        }
    )
    published(catalog, stream, [[batch]])
    shown = json.loads(run("sub", stream, "--since", "start", "--raw").out)
    assert shown == {
        "far": "29349-01-26", "fars": ["29349-01-26"], "nano": "00:00:00.000000001",
        "at": "<value out of range: 1000000000000000000>", "day": "2024-01-01",
    }  # fmt: skip


def test_rows_of_an_arrow_stream_are_of_the_declared_types_or_refused(run, manifest, tmp_path: Path) -> None:
    fields = "{name: n, type: int32, nullable: false}, {name: at, type: 'timestamp[s]'}, {name: f, type: float32}"
    text = manifest("typed", encoding="arrow", segments=1).replace(
        "encoding: arrow", f"encoding: arrow, schema: {{fields: [{fields}]}}"
    )
    assert run("apply", "-f", "-", stdin=text).status == 0
    file = tmp_path / "x.jsonl"
    for record, words in (
        ('{"n": 1.5}', "its field n must be int32, not the number 1.5"),
        ('{"n": 1, "m": 2}', "it has a field m, which the stream does not declare; known here: n, at, f"),
        ('{"at": 1}', "its field n is missing"),
        ('{"n": 1, "f": 1e300}', "its field f must be float32, and 1e+300 is too large"),
        ('{"n": 1, "at": "x"}', "its field at must be timestamp[s]"),
    ):
        file.write_text(f'{{"n": 1}}\n{record}\n')
        result = run("pub", "demo/typed", "-t", "1", "-f", file)
        assert (result.status, f"{file}:2: {words}" in result.err) == (2, True), result.err
    times = pa.table({"n": pa.array([1], pa.int32()), "at": pa.array([1], pa.int64()).cast(pa.timestamp("us"))})
    parquet.write_table(times, tmp_path / "x.parquet")
    result = run("pub", "demo/typed", "-t", "1", "-f", tmp_path / "x.parquet")
    assert (result.status, "would lose data" in result.err) == (2, True), result.err
    assert run("pub", "demo/typed", "-t", "1", '{"n": 1, "at": 5, "f": 0.1}', "--finish").status == 0
    shown = json.loads(run("sub", "demo/typed", "--since", "start", "--raw").out)
    assert (shown["n"], shown["at"], round(shown["f"], 6)) == (1, "1970-01-01T00:00:05", 0.1)
    assert run("delete", "stream", "demo/typed").status == 0


# ---- bytes of the command line ----


def test_text_of_the_command_line_that_is_no_utf8_is_taken_as_bytes(run, declared, catalog: str) -> None:
    stream = declared("bytes", segments=1)
    odd = os.fsdecode(b"\xff\xe9")
    options = ("--key", f"k{odd}", "--topic", f"t{odd}", "--header", f"h{odd}=v{odd}")
    assert run("pub", stream, "-t", "1", f"r{odd}", *options).status == 0
    assert run("pub", stream, "-t", "1", "other", "--topic", "u", "--finish").status == 0

    async def read() -> list[epochal.Data]:
        async with epochal.connect(catalog) as client, client.subscribe(stream, since="start") as sub:
            return [batch async for epoch in sub.epochs() for batch in epoch.batches]  # type: ignore[union-attr]

    first, _ = asyncio.run(read())
    assert (first.key, first.topic, first.headers) == (b"k\xff\xe9", b"t\xff\xe9", {b"h\xff\xe9": b"v\xff\xe9"})
    assert first.records() == [b"r\xff\xe9"]
    assert run("sub", stream, "--since", "start", "--topic", f"t{odd}").out == "1\tr\\xff\\xe9\n"
    assert run("sub", stream, "--since", "start", "--reject", f"t{odd}", "--raw").out == "other\n"


def test_text_that_is_no_utf8_is_no_record_of_msgpack_and_json(run, declared) -> None:
    for encoding in ("msgpack", "json"):
        for options in ((), ("--text",)):
            result = run("pub", declared(encoding), "-t", "1", os.fsdecode(b'"\xff"'), *options)
            assert (result.status, "argument:1: is no text in UTF-8" in result.err) == (2, True), result.err


def test_a_key_or_topic_that_is_too_long_is_refused_before_anything_is_published(run, declared, tmp_path: Path) -> None:
    stream = declared("json", segments=1)
    file = tmp_path / "x.jsonl"
    file.write_text('{"k": "a"}\n' + json.dumps({"k": "k" * 1025}) + "\n")
    for options, words in (
        (("--key", "k" * 1025, "1"), "--key has 1,025 bytes; a key has at most 1,024"),
        (("--topic", "t" * 1025, "1"), "--topic has 1,025 bytes; a topic has at most 1,024"),
        (("--key-field", "k", "-f", str(file)), f"{file}:2: its key, in k, has 1,025 bytes; a key has at most 1,024"),
        (("--key-field", "k", '{"k": "\\ud800"}'), "argument:1: a record cannot be written as JSON"),
    ):
        result = run("pub", stream, "-t", "1", *options)
        assert (result.status, words in result.err) == (2, True), result.err
    assert run("pub", stream, "-t", "1", "--key", "k" * 1024, "1", "--finish").status == 0
    assert run("sub", stream, "--since", "start", "--raw").out == "1\n"


def test_keys_of_a_field_are_what_append_frame_makes_of_them(run, declared, catalog: str, tmp_path: Path) -> None:
    stream = declared("msgpack", segments=1)
    for keys in (pa.array([b"\xff"]), pa.array(["é"]), pa.array([7]), pa.array([None], pa.string())):
        parquet.write_table(pa.table({"k": keys, "n": [1]}), tmp_path / "x.parquet")
        assert run("pub", stream, "-t", "1", "-f", tmp_path / "x.parquet", "--key-field", "k").status == 0
    assert run("pub", stream, "--finish").status == 0

    async def read() -> list[bytes | None]:
        async with epochal.connect(catalog) as client, client.subscribe(stream, since="start") as sub:
            return [batch.key async for epoch in sub.epochs() for batch in epoch.batches]  # type: ignore[union-attr]

    assert asyncio.run(read()) == [b"\xff", "é".encode(), b"7", None]


# ---- fields of times and keys ----


@pytest.mark.parametrize("encoding", ["msgpack", "json", "arrow"])
def test_fields_of_times_and_keys_that_are_not_declared_are_left_out(
    run, manifest, tmp_path: Path, encoding: str
) -> None:
    def declare(name: str, *fields: str) -> str:
        listed = ", ".join(f"{{name: {field}, type: int64}}" for field in fields)
        text = manifest(name, encoding=encoding, segments=1).replace(
            f"encoding: {encoding}", f"encoding: {encoding}, schema: {{fields: [{listed}]}}"
        )
        assert run("apply", "-f", "-", stdin=text).status == 0
        return f"demo/{name}"

    lines, table = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    lines.write_text('{"t": 1, "k": 5, "n": 1}\n{"t": 2, "k": 5, "n": 2}\n')
    parquet.write_table(pa.table({"t": [3], "k": [5], "n": [3]}), table)
    without, those = declare(f"without-{encoding}", "n"), declare(f"with-{encoding}", "n", "t", "k")
    placing = ("--time-field", "t", "--key-field", "k")
    for stream, wanted in (
        (without, [{"n": n} for n in (1, 2, 3)]),
        (those, [{"n": n, "t": n, "k": 5} for n in (1, 2, 3)]),
    ):
        assert run("pub", stream, "-f", lines, "-f", table, *placing, "--finish").status == 0
        shown = run("sub", stream, "--since", "start", "--epochs", "--json").out
        epochs = [json.loads(line) for line in shown.splitlines()]
        assert [(epoch["time"], epoch["records"]) for epoch in epochs if epoch["kind"] == "epoch"] == [
            (time, [record]) for time, record in enumerate(wanted, 1)
        ]
        assert run("delete", "stream", stream).status == 0
    other = declare(f"other-{encoding}", "n")
    result = run("pub", other, "-f", lines, "--time-field", "t")
    assert (result.status, f"{lines}:1: it has a field k, which the stream does not declare" in result.err) == (2, True)
    assert run("delete", "stream", other).status == 0
