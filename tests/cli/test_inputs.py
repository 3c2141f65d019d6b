"""Where records come from, and how a bad one is named: without a stream."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from epochal.cli.io.inputs import Item, Parse, line_parser, open_sources
from epochal.cli.io.sender import RecordPlacement
from epochal.client.encoding.record_checks import RecordChecks
from epochal.errors import RecordTypeError
from epochal.protocol.times import TimeShape
from epochal.resources.schemas import Schema


def parse(text: str, encoding: str = "msgpack", *, as_text: bool = False) -> Any:
    return line_parser(encoding, as_text=as_text)(text.encode())


async def read(parser: Parse, *files: Path, records: Sequence[str] = (), encoding: str = "msgpack") -> list[Item]:
    sources = open_sources(records, [str(file) for file in files], parser, encoding)
    return [item for source in sources async for items in source.chunks() for item in items]


def test_what_a_line_is() -> None:
    assert parse("é", "bytes") == "é".encode()
    assert parse('{"a": [1]}') == {"a": [1]}
    assert parse('"5"', as_text=True) == '"5"'
    for text, wrong in (("JFK", "is not JSON: Expecting value at column 1"), ("[1", "column 3"), ("[" * 9999, "deep")):
        with pytest.raises(ValueError, match=wrong):
            parse(text)
    with pytest.raises(ValueError, match="--text publishes texts"):
        parse('{"delay": 3')
    with pytest.raises(ValueError, match="arrow stream is a row"):
        parse("3", "arrow")
    with pytest.raises(RecordTypeError):
        line_parser("arrow", as_text=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [("x.csv", "rows of text"), ("x.jsonl.gz", "zcat"), ("x.XLSX", "a spreadsheet")],
)
def test_a_file_of_another_format_is_refused_with_those_that_are_read(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_text("1,2\n")
    with pytest.raises(RecordTypeError, match=r"lines of JSON and \.parquet, \.arrow, \.feather") as raised:
        open_sources([], [str(tmp_path / name)], line_parser("json", as_text=False), "json")
    assert said in str(raised.value)
    assert open_sources([], [str(tmp_path / name)], line_parser("json", as_text=True), "json"), "any line is a text"


async def test_a_bad_line_is_named_after_those_before_it(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a": 1}\n\n2\nno\n3\n')
    (source,) = open_sources([], [str(file)], line_parser("msgpack", as_text=False), "msgpack")
    chunks = source.chunks()
    assert [(item.number, item.record) for item in await anext(chunks)] == [(1, {"a": 1}), (3, 2)]
    with pytest.raises(RecordTypeError, match=r"x\.jsonl:4: is not JSON"):
        await anext(chunks)
    file.write_bytes(b"1\n\xff\n")
    with pytest.raises(RecordTypeError, match=r"x\.jsonl:2: is no text in UTF-8"):
        await read(line_parser("msgpack", as_text=True), file)


async def test_lines_longer_than_what_is_read_at_once_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "x"
    lines = [os.urandom(100_000).replace(b"\n", b" ") for _ in range(3)]
    file.write_bytes(b"\n".join(lines))
    items = await read(line_parser("bytes", as_text=False), file, records=["first"], encoding="bytes")
    assert [item.record for item in items] == [b"first", *lines]
    assert [item.where for item in items][:2] == ["argument:1", f"{file}:1"]


async def test_tables_are_rows(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"hour": [1, 2], "at": pa.array([0, 1], pa.timestamp("s")), "raw": [b"\xff", None]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "x.feather"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for name in ("x.parquet", "x.arrow", "x.feather"):
        items = await read(line_parser("msgpack", as_text=False), tmp_path / name)
        assert items[0].record == {"hour": 1, "at": "1970-01-01T00:00:00", "raw": b"\xff"}
        assert items[1].where == f"{tmp_path / name}:2"
    (tmp_path / "y.parquet").write_text("no table")
    with pytest.raises(RecordTypeError, match="is no parquet file"):
        await read(line_parser("msgpack", as_text=False), tmp_path / "y.parquet")


def items(*records: Any) -> list[Item]:
    return [Item("f", number, record) for number, record in enumerate(records, 1)]


def test_fields_place_a_record() -> None:
    placement = RecordPlacement(TimeShape.parse("(int, int)"), None, "t", None, "k", in_order=False)
    appends = list(placement.appends(items({"t": [1, 2], "k": "a"}, {"t": "(1, 3)", "k": 7}, {"t": [1, 2], "k": "a"})))
    assert [(append.time, append.key, len(append.records)) for append in appends] == [
        ((1, 2), b"a", 2),
        ((1, 3), b"7", 1),
    ]
    assert appends[0].where == "f:1 to f:3"


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        ({"t": "x"}, 'f:2: t is "x", and this stream\'s times have the shape int'),
        ({"t": None}, "f:2: t is null"),
        ({"t": -1}, "f:2: t is -1"),
        ({"u": 1}, "f:2: has no field t; it has: u"),
        ([1], "f:2: has no field t: it is no object"),
        ({"t": 4}, "f:2: its time 4 is not at or after 5"),
    ],
)
def test_a_record_that_cannot_be_placed_is_named(record: Any, wrong: str) -> None:
    placement = RecordPlacement(TimeShape.parse("int"), None, "t", None, None, in_order=True)
    appends = placement.appends(items({"t": 5}, record, {"t": 6}))
    assert next(appends).time == 5
    with pytest.raises(RecordTypeError) as raised:
        next(appends)
    assert str(raised.value).startswith(wrong)


def test_a_record_that_the_stream_does_not_declare_is_named() -> None:
    checks = RecordChecks(Schema.parse({"fields": [{"name": "delay", "type": "int32"}]}), "json")
    placement = RecordPlacement(TimeShape.parse("int"), 1, None, None, None, in_order=False, checks=checks)
    appends = placement.appends(items({"delay": 1}, {"dealy": 2}, {"delay": 3}))
    assert next(appends).records == [{"delay": 1}]
    with pytest.raises(RecordTypeError, match=r"f:2: it has a field dealy, .*; did you mean 'delay'\?"):
        next(appends)
