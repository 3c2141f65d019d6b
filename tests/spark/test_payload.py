"""What the records of an append hold, in each encoding and with a declared schema, and what the page says of it."""

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from epochal.client.encoding.encodings import decoder, encoder
from epochal.errors import ConfigError, RecordTypeError
from epochal.protocol.times import TimeShape
from epochal.resources.schemas import Schema
from epochal_spark.declaration import Declared
from epochal_spark.options import OPTIONS, SinkOptions
from epochal_spark.payload import APPEND_RECORDS, Payload
from epochal_spark.schemas import check_schema

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
AT = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)


def declared(encoding: str, *fields: tuple[str, str, bool]) -> Declared:
    document = {"fields": [{"name": name, "type": kind, "nullable": null} for name, kind, null in fields]}
    return Declared(TimeShape.parse("int"), encoding, Schema.parse(document) if fields else None)


def columns(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def carried(stream: Declared, batch: pa.RecordBatch) -> list[Any]:
    """The records as a subscriber decodes them."""
    payload = Payload(stream, "t")
    records = payload.records(payload.rows(batch))
    return decoder(stream.encoding)(encoder(stream.encoding, stream.schema)(records))


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_row_is_a_map_of_all_columns_but_the_times(encoding: str) -> None:
    rows: list[dict[str, Any]] = [
        {"x": 1.5, "s": "Zürich", "l": [1, None], "p": {"a": True}, "m": {"k": 1}},
        {"x": None, "s": None, "l": None, "p": None, "m": None},
    ]
    kinds = {"x": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64()), "p": pa.struct([("a", pa.bool_())])}
    schema = pa.schema([("t", pa.int64()), *kinds.items(), ("m", pa.map_(pa.string(), pa.int64()))])
    given = [{"t": 1, **row, "m": [("k", 1)] if row["m"] else None} for row in rows]
    assert carried(declared(encoding), pa.RecordBatch.from_pylist(given, schema=schema)) == rows


def test_arrow_carries_one_batch_whose_schema_no_setting_of_spark_changes() -> None:
    def given(zone: str, text: pa.DataType, element: str) -> pa.RecordBatch:
        items = pa.list_(pa.field(element, pa.struct([pa.field("s", text, nullable=False)])))
        columns = [pa.array([1]), pa.array([AT], pa.timestamp("us", zone)), pa.array([[{"s": "x"}]], items)]
        return pa.RecordBatch.from_arrays(columns, ["t", "at", "l"])

    (one,) = carried(declared("arrow"), given("Europe/Berlin", pa.large_string(), "element"))
    (other,) = carried(declared("arrow"), given("UTC", pa.string(), "item"))
    assert one.schema.equals(other.schema, check_metadata=True)
    assert one.to_pylist() == other.to_pylist() == [{"at": AT, "l": [{"s": "x"}]}]


def test_a_declared_schema_is_filled_or_refused_by_column() -> None:
    stream = declared("arrow", ("small", "uint8", False), ("t", "int32", True))
    batch = pa.RecordBatch.from_pydict({"t": [7], "small": [200]})
    (found,) = carried(stream, batch)
    assert (found.to_pylist(), str(found.schema.field("t").type)) == ([{"small": 200, "t": 7}], "int32")
    with pytest.raises(RecordTypeError, match="column 'small' holds what the stream's uint8 cannot"):
        carried(stream, pa.RecordBatch.from_pydict({"t": [7], "small": [-1]}))
    with pytest.raises(RecordTypeError, match="column 'small' holds null"):
        carried(stream, pa.RecordBatch.from_pydict({"t": [7], "small": pa.array([None], pa.int64())}))


def test_columns_of_time_key_and_topic_need_no_field_and_are_left_out_without_one() -> None:
    stream = declared("json", ("n", "int64", True))
    options = SinkOptions("demo/x", "http://c", "t", "q", "k", "o")
    schema = columns(t=t.LongType(), k=t.BinaryType(), o=t.BinaryType(), n=t.LongType())
    check_schema(schema, options, stream)
    batch = pa.RecordBatch.from_pydict({"t": [7], "k": [b"key"], "o": [b"topic"], "n": [1]})
    assert carried(stream, batch) == [{"n": 1}]
    assert carried(declared("msgpack"), batch) == [{"k": b"key", "o": b"topic", "n": 1}]
    with pytest.raises(ConfigError) as error:
        check_schema(schema, SinkOptions("demo/x", "http://c", "t", "q"), stream)
    assert {problem.path for problem in error.value.problems} == {"k", "o"}


def test_a_large_group_is_divided_and_nothing_is_lost() -> None:
    rows = pa.RecordBatch.from_pydict({"n": list(range(2 * APPEND_RECORDS + 1))})
    payload = Payload(declared("msgpack"), "t")
    parts = list(payload.chunks(rows))
    assert [part.num_rows for part in parts] == [APPEND_RECORDS, APPEND_RECORDS, 1]
    assert [record["n"] for part in parts for record in payload.records(part)] == list(range(2 * APPEND_RECORDS + 1))
    wide = pa.RecordBatch.from_pydict({"text": ["x" * (1 << 20)] * 20})
    arrow = Payload(declared("arrow"), "t")
    assert max(part.num_rows for part in arrow.chunks(wide)) <= 4
    assert [part.num_rows for part in arrow.chunks(rows)] == [rows.num_rows]


def test_every_column_that_differs_from_its_field_is_named_with_what_would_mend_it() -> None:
    stream = declared(
        "arrow", ("delay", "int32", True), ("at", "timestamp[ms, UTC]", True), ("legs", "list<uint16>", True),
        ("gone", "decimal128(9, 2)", True), ("must", "string", False),
    )  # fmt: skip
    schema = columns(
        t=t.LongType(),
        delay=t.StringType(),
        at=t.TimestampType(),
        legs=t.ArrayType(t.IntegerType()),
        other=t.DateType(),
    )
    with pytest.raises(ConfigError) as error:
        check_schema(schema, SinkOptions("demo/x", "http://c", "t", "q"), stream)
    assert {problem.path: (problem.reason, problem.hint) for problem in error.value.problems} == {
        "delay": ("is string; the stream has int32", '.withColumn("delay", f.col("delay").cast("int"))'),
        "gone": (
            "is no column; the stream has decimal128(9, 2)",
            '.withColumn("gone", f.lit(None).cast("decimal(9,2)"))',
        ),
        "must": ("is no column; the stream has string", "add it"),
        "other": ("is date; the stream has no such field", '.drop("other")'),
    }  # fmt: skip
    shown = next(line for line in PAGE.read_text().splitlines() if line.startswith("  dep_delay: "))
    assert shown.replace("dep_delay", "delay") in str(error.value)


@pytest.mark.parametrize(
    ("encoding", "refused"), [("arrow", set()), ("msgpack", {"d", "m"}), ("json", {"b", "d", "m"})]
)
def test_what_an_encoding_cannot_carry_is_refused(encoding: str, refused: set[str]) -> None:
    nested = t.ArrayType(columns(x=t.IntegerType()))
    schema = columns(t=t.IntegerType(), b=t.BinaryType(), d=t.DateType(), m=t.DecimalType(3, 1), l=nested)
    options = SinkOptions("demo/x", "http://c", "t", "q")
    if not refused:
        check_schema(schema, options, declared(encoding))
        return
    with pytest.raises(ConfigError, match=f"{encoding} cannot carry") as error:
        check_schema(schema, options, declared(encoding))
    assert {problem.path for problem in error.value.problems} == refused


def test_a_struct_with_two_members_of_one_name_is_refused_by_its_path() -> None:
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    with pytest.raises(ConfigError) as error:
        check_schema(columns(t=t.LongType(), l=t.ArrayType(twice)), SinkOptions("demo/x", "http://c", "t", "q"))
    assert {problem.path: problem.reason for problem in error.value.problems} == {
        "l[]": "has the member a more than once"
    }


def test_the_page_names_every_option_with_its_default_and_where_it_is_used() -> None:
    uses = {(True, True): "both", (True, False): "batch", (False, True): "streaming"}
    rows = re.findall(r"^\| `(\w+)` \| (both|batch|streaming) \| (.*?) \|", PAGE.read_text(), re.M)
    assert [(name, use) for name, use, _ in rows] == [(o.name, uses[o.batch, o.streaming]) for o in OPTIONS]
    for option, (_, _, default) in zip(OPTIONS, rows, strict=True):
        if option.default:
            assert default == f"`{option.default}`"
        elif option.default is None:
            assert default == "required" or default.startswith("set by `publish`")


def test_the_defaults_of_the_page_are_those_that_are_used() -> None:
    options = SinkOptions.parse({"stream": "demo/x", "time": "t"}, streaming=False)
    given = {option.name: option.default for option in OPTIONS if option.batch and option.default}
    used = {"complete": options.complete, "finish": options.finish, "writer": options.query, "wait": int(options.wait)}
    assert {name: json.dumps(value).strip('"') for name, value in used.items()} == given
