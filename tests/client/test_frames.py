"""Tables of pandas and Arrow: grouped by time and key, appended, and read back from epochs."""

import asyncio
import datetime
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE

import epochal
from epochal.client.encoding import frames
from epochal.client.encoding.columns import maps, plain_type
from epochal.client.encoding.encodings import decoder, encoder
from epochal.client.encoding.record_checks import record_checks
from epochal.client.encoding.tables import to_table
from epochal.client.writer.frame_batches import FrameBatch, FrameEncoder
from epochal.errors import (
    CapabilityError,
    EpochAbortedError,
    PayloadTooLarge,
    RecordTypeError,
    TimeShapeError,
    UsageError,
    WriterClosed,
)
from epochal.protocol.time_codec import TimeCodec
from epochal.protocol.times import TimeShape
from epochal.protocol.wire import MAX_PAYLOAD
from epochal.resources.schemas import Schema

INT, PAIR = TimeShape.parse("int"), TimeShape.parse("(int, int)")
FLIGHTS = {"hour": [2, 1, 2, 1], "origin": ["JFK", "LGA", "LGA", "LGA"], "delay": [7, -2, 0, 5]}
FIELDS = [{"name": "origin", "type": "string", "nullable": False}, {"name": "delay", "type": "int32"}]
DECLARED = Schema.parse({"fields": FIELDS})


class Streamed:
    """What a table of any other library is to us: nothing but Arrow's C stream."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def place(key: bytes) -> str:
    return str(key[-1] % 2)


def schema(*fields: tuple[str, str] | tuple[str, str, bool]) -> Schema:
    return Schema.parse({"fields": [dict(zip(("name", "type", "nullable"), field, strict=False)) for field in fields]})


def groups(frame: Any, time: Any = "t", key: str | None = None, **stream: Any) -> list[frames.Group]:
    stream = {"encoding": "msgpack", "shape": INT, **stream}
    return list(frames.groups(frames.read(frame, time, key, **stream), place))


def rows_of(frame: Any, time: Any = "t", key: str | None = None, **stream: Any) -> list[dict[str, Any]]:
    return [row for group in groups(frame, time, key, **stream) for row in maps(group.rows)]


# ---- a frame divided ----


def test_rows_are_divided_by_time_and_segment_in_order_of_times() -> None:
    table = pa.table({"t": [2, 1, 2, 1, 2], "k": ["a", "b", "b", "b", "d"], "n": [0, 1, 2, 3, 4]})
    found = groups(table, key="k")
    assert [(group.time, group.segment, group.key, group.rows["n"].to_pylist()) for group in found] == [
        (1, "0", b"b", [1, 3]),
        (2, "1", b"a", [0]),
        (2, "0", None, [2, 4]),
    ]
    assert [group.rows["n"].to_pylist() for group in groups(table)] == [[1, 3], [0, 2, 4]]
    assert {group.segment for group in groups(table)} == {None}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, *"abcd"]), st.integers(0, 999)), max_size=60),
    st.integers(1, 7),
    st.sampled_from(["arrow", "msgpack", "json"]),
)
def test_any_frame_gives_back_the_same_rows_for_each_time(
    rows: list[tuple[int, str | None, int]], size: int, encoding: str
) -> None:
    kinds = pa.schema([("t", pa.int32()), ("k", pa.string()), ("n", pa.int64())])
    table = pa.Table.from_pylist([dict(zip("tkn", row, strict=True)) for row in rows], schema=kinds)
    table = pa.Table.from_batches(table.to_batches(max_chunksize=size), schema=kinds)  # in several chunks
    found = groups(table, key="k", encoding=encoding)
    assert [group.time for group in found] == sorted(group.time for group in found)
    assert len({(group.time, group.segment) for group in found}) == len(found)
    assert sum(group.rows.num_rows for group in found) == len(rows)
    encode = FrameEncoder(encoding, encoder(encoding), None, most=5)
    for group in found:
        wanted = [{"k": k, "n": n} for t, k, n in rows if (t, k and place(k.encode())) == (group.time, group.segment)]
        keys = {row["k"] for row in wanted}
        assert group.key == (str(*keys).encode() if len(keys) == 1 and None not in keys else None)
        batches = list(encode.batches(group, group.time))
        assert to_table(read(encoding, batches)).to_pylist() == wanted
        assert {(batch.time, batch.segment, batch.key) for batch in batches} == {group[:3]}


def read(encoding: str, batches: list[FrameBatch]) -> list[Any]:
    found = []
    for batch in batches:
        records = decoder(encoding)(batch.payload)
        assert len(records) == batch.records
        found += records
    return found


def test_rows_in_order_are_not_copied() -> None:
    table = pa.table({"t": [1, 1, 2], "n": [0, 1, 2]})
    first, second = groups(table, encoding="arrow")
    for group, offset in ((first, 0), (second, 2)):
        (record,) = frames.records(group.rows, "arrow")
        assert record["n"].buffers()[1].address == table["n"].chunk(0).buffers()[1].address
        assert record["n"].offset == offset
    (record,) = frames.records(groups(pa.table({"t": [2, 1], "n": [0, 1]}), encoding="arrow")[0].rows, "arrow")
    assert record.to_pydict() == {"n": [1]}


def test_times_of_several_ints() -> None:
    wanted = [((0, 3), [2]), ((1, 0), [1]), ((1, 2), [0])]
    table = pa.table({"day": [1, 1, 0], "hour": [2, 0, 3], "n": [0, 1, 2]})
    assert [(g.time, g.rows["n"].to_pylist()) for g in groups(table, ["day", "hour"], shape=PAIR)] == wanted
    table = pa.table({"t": [{"day": 1, "hour": 2}, {"day": 1, "hour": 0}, {"day": 0, "hour": 3}], "n": [0, 1, 2]})
    assert [(g.time, g.rows["n"].to_pylist()) for g in groups(table, shape=PAIR)] == wanted
    table = pa.table({"a": [1], "t": [{"b": 2, "c": 3}], "n": [0]})
    assert [g.time for g in groups(table, ("a", "t"), shape=TimeShape.parse("(int, (int, int))"))] == [(1, (2, 3))]
    assert [g.time for g in groups(table, [], shape=TimeShape.parse("()"))] == [()]


def test_a_codec_may_make_times_of_other_values() -> None:
    days = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)]
    found = groups(pa.table({"t": days, "n": [1, 2]}), shape=None)
    assert [group.time for group in found] == sorted(days)
    with pytest.raises(TimeShapeError, match="null in 1 of 2 rows"):
        groups(pa.table({"t": [days[0], None], "n": [1, 2]}), shape=None)
    with pytest.raises(TimeShapeError, match="plain values"):
        groups(pa.table({"t": [[1], [2]], "n": [1, 2]}), shape=None)


def test_keys_of_each_type() -> None:
    for keys, wanted in (
        ([8, 9], {b"8", b"9"}),
        ([b"\x00", b"\x01"], {b"\x00", b"\x01"}),
        (["é", "f"], {"é".encode(), b"f"}),
        (pd.Categorical(["x", "y"]), {b"x", b"y"}),
        ([None, None], {None}),
    ):
        frame = pd.DataFrame({"t": [1, 1], "n": [1, 2]}).assign(k=keys)
        assert {group.key for group in groups(frame, key="k")} == wanted


@pytest.mark.parametrize("keys", [["x" * 1024, "é" * 513], [b"x", b"\xff" * 1025], pd.Categorical(["a" * 1025] * 2)])
def test_a_key_that_is_too_long_is_refused_by_its_column(keys: Any) -> None:
    frame = pd.DataFrame({"t": [1, 1], "n": [1, 2]}).assign(k=keys)
    with pytest.raises(
        UsageError, match=r"the key column 'k' holds a key of 1,02\d bytes, .*; a key has at most 1,024"
    ):
        groups(frame, key="k")


@pytest.mark.parametrize(
    "frame",
    [
        pa.table(FLIGHTS),
        pa.record_batch(FLIGHTS),
        pd.DataFrame(FLIGHTS),
        Streamed(pa.table(FLIGHTS)),
        Streamed(pa.table({**FLIGHTS, "origin": pa.array(FLIGHTS["origin"]).cast(pa.string_view())})),
        pa.table({**FLIGHTS, "origin": pa.array(FLIGHTS["origin"]).cast(pa.large_string())}),
        pd.DataFrame(FLIGHTS).astype({"origin": "category"}),
        pd.DataFrame(FLIGHTS).set_index("hour"),
        pd.DataFrame({**FLIGHTS, "hour": [3, 2, 3, 2]}).assign(hour=lambda frame: frame.hour - 1).query("hour < 9"),
    ],
    ids=["table", "batch", "pandas", "streamed", "views", "large", "categories", "index", "filtered"],
)
def test_each_kind_of_table_gives_the_same_records(frame: Any) -> None:
    wanted = [{"origin": "LGA", "delay": -2}, {"origin": "LGA", "delay": 5}, {"origin": "JFK", "delay": 7},
              {"origin": "LGA", "delay": 0}]  # fmt: skip
    found = groups(frame, "hour", encoding="arrow")
    assert [row for group in found for row in maps(group.rows)] == wanted
    (kinds,) = {group.rows.schema for group in found}
    assert kinds == pa.schema([("origin", pa.string()), ("delay", pa.int64())])
    assert not kinds.metadata


def test_a_reader_of_batches_and_a_frame_after_a_filter() -> None:
    batch = pa.record_batch(FLIGHTS)
    assert len(rows_of(pa.RecordBatchReader.from_batches(batch.schema, [batch, batch]), "hour")) == 8
    frame = pd.DataFrame(FLIGHTS)
    assert rows_of(frame[frame.delay > 5], "hour") == [{"origin": "JFK", "delay": 7}]


def test_a_frame_without_rows_has_no_groups_and_is_checked_all_the_same() -> None:
    empty = pa.schema([("t", pa.int64()), ("n", pa.int64())]).empty_table()
    assert groups(empty) == []
    assert groups(empty, key="n") == []
    with pytest.raises(UsageError, match="does not have"):
        groups(empty, "hour")


def test_rows_at_a_time_that_is_given() -> None:
    (group,) = groups(pa.table({"n": [1, 2]}), None)
    assert group.rows["n"].to_pylist() == [1, 2]


# ---- what a record holds ----


def test_records_hold_the_declared_fields() -> None:
    frame = pd.DataFrame({**FLIGHTS, "delay": [7.0, None, 0.0, 5.0]})
    wanted = [{"origin": "LGA", "delay": None}, {"origin": "LGA", "delay": 5}, {"origin": "JFK", "delay": 7},
              {"origin": "LGA", "delay": 0}]  # fmt: skip
    for encoding in ("arrow", "msgpack", "json"):
        found = groups(frame, "hour", schema=DECLARED, encoding=encoding)
        assert [row for group in found for row in maps(group.rows)] == wanted
        assert found[0].rows.schema.field("delay").type == pa.int32()
    with_time = schema(("t", "int64"), ("n", "int64"))
    assert rows_of(pa.table({"t": [1], "n": [2]}), schema=with_time) == [{"t": 1, "n": 2}]
    without_key = schema(("n", "int64"))
    assert rows_of(pa.table({"t": [1], "k": ["a"], "n": [2]}), key="k", schema=without_key) == [{"n": 2}]


def test_a_field_that_may_be_null_may_be_missing() -> None:
    frame = pa.table({"t": [1], "origin": ["JFK"]})
    assert rows_of(frame, schema=DECLARED) == [{"origin": "JFK"}]
    assert rows_of(frame, schema=DECLARED, encoding="arrow") == [{"origin": "JFK", "delay": None}]


def test_types_that_mean_the_same_are_cast() -> None:
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    for name, values, kind in (
        ("timestamp[us, UTC]", pd.Series([at]).dt.tz_convert("America/New_York"), pa.timestamp("us", "UTC")),
        ("timestamp[s]", np.array(["2024-01-01"], "datetime64[ns]"), pa.timestamp("s")),
        ("decimal128(10, 2)", pa.array([1]).cast(pa.decimal128(19, 0)), pa.decimal128(10, 2)),
        ("list<float64>", pa.array([[1]]), pa.list_(pa.float64())),
        ("struct<a: int32, b: string>", pa.array([{"a": 1, "b": "x"}]), None),
        ("binary", pa.array([b"ab"], pa.binary(2)), pa.binary()),
        ("date32", pa.array([at.date()], pa.date64()), pa.date32()),
        ("float32", pa.array([2]), pa.float32()),
        ("string", pa.array([None]), pa.string()),
    ):
        (group,) = groups(
            Streamed(pa.table({"t": [1], "x": pa.array(values)})), schema=schema(("x", name)), encoding="arrow"
        )
        assert kind is None or group.rows.schema.field("x").type == kind
        FrameEncoder("arrow", encoder("arrow", schema(("x", name))), None, 9).batches(group, 1).__next__()


def test_what_msgpack_and_json_have_no_type_for_is_written_as_text_or_a_number() -> None:
    declared = schema(("at", "timestamp[us]"), ("raw", "binary"))
    table = pa.table({"t": [1], "at": ["2024-01-01"], "raw": ["AA=="]})
    assert rows_of(table, schema=declared, encoding="json") == [{"at": "2024-01-01", "raw": "AA=="}]


def test_maps_become_mappings() -> None:
    table = pa.table({"t": [1], "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    assert rows_of(table) == [{"m": {"a": 1}}]
    assert plain_type(pa.large_list(pa.large_binary())) == pa.list_(pa.binary())


# ---- what is refused, by the name of the column ----

NAN = float("nan")


@pytest.mark.parametrize(
    ("columns", "words", "options"),
    [
        ({"t": [1, None], "n": [1, 2]}, "'t' holds null in 1 of 2 rows; every row needs a time", {}),
        ({"t": [1.0, 2.0], "n": [1, 2]}, "'t' is double; .* cast it to int64", {}),
        ({"t": ["1", "2"], "n": [1, 2]}, "'t' is string; ", {}),
        ({"t": [1, -4], "n": [1, 2]}, "'t' holds -4 to 1; times are 0", {}),
        ({"t": pa.array([2**63], pa.uint64()), "n": [1]}, "'t' holds", {}),
        ({"t": [{"a": 1}, None], "n": [1, 2]}, "'t' holds null", {"shape": TimeShape.parse("(int,)")}),
        ({"t": [1], "n": [1]}, r"'t' has the shape int, .* shape \(int, int\)", {"shape": PAIR}),
        ({"t": [1], "n": [1]}, r"\['t'\] has the shape \(int,\), ", {"time": ["t"]}),
    ],
)
def test_times_that_are_none_are_refused(columns: Any, words: str, options: Any) -> None:
    with pytest.raises(TimeShapeError, match=words):
        groups(pa.table(columns), **options)


@pytest.mark.parametrize(
    ("columns", "words", "options"),
    [
        ({"hour": [1], "n": [1]}, "time= names the column 'huor', .* mean 'hour'", {"time": "huor"}),
        ({"t": [1], "n": [1]}, "key= names the column 'k', .* known here: t, n", {"key": "k"}),
        ({"t": [1], "k": [1.5], "n": [1]}, "'k' is double; a key is text, binary or an integer", {"key": "k"}),
        ({"t": [1]}, "would be empty", {}),
        ({"t": [1]}, "would be empty", {"schema": schema(("n", "int64"))}),
        ({"t": [1], "at": [datetime.datetime(2024, 1, 1)]}, "'at' is timestamp.* msgpack cannot carry", {}),
        ({"t": [1], "x": [[{"b": b"0"}]]}, "'x' is list.* json cannot carry", {"encoding": "json"}),
        ({"t": [1], "x": [b"0"]}, "'x' is binary.* json", {"encoding": "json", "schema": schema(("x", "binary"))}),
        ({"t": [1, 1], "x": [1.0, NAN]}, "'x' holds NaN or infinity", {"encoding": "json"}),
        ({"t": [1], "x": [1]}, "bytes", {"encoding": "bytes"}),
        ({"t": [1], "x": [2**40]}, "'x' is int64, and int32 cannot hold it", {"schema": schema(("x", "int32"))}),
        ({"t": [1], "x": [1.5]}, "'x' is double, and int64 cannot", {"schema": schema(("x", "int64"))}),
        ({"t": [1], "x": ["1"]}, "'x' is string; the stream declares int64", {"schema": schema(("x", "int64"))}),
        ({"t": [1], "x": [[1]]}, "'x' is list", {"schema": schema(("x", "list<string>"))}),
        ({"t": [1], "x": [{"b": 1}]}, "'x' is struct", {"schema": schema(("x", "struct<a: int64>"))}),
        ({"t": [1], "x": [1], "y": [1]}, "no field for the column 'y': drop it", {"schema": schema(("x", "int64"))}),
        ({"t": [1], "y": [1]}, "no column 'x'", {"schema": schema(("x", "int64", False), ("y", "int64"))}),
        ({"t": [1, 1], "x": [1, None]}, "'x' holds null in 1 of 2 rows", {"schema": schema(("x", "int64", False))}),
    ],
)
def test_columns_that_cannot_be_published_are_refused(columns: Any, words: str, options: Any) -> None:
    with pytest.raises(UsageError, match=words):
        groups(pa.table(columns), **options)


def test_times_of_day_are_not_instants() -> None:
    table = pa.table({"t": [1], "x": [datetime.datetime(2024, 1, 1)]})
    with pytest.raises(UsageError, match="'x' is timestamp"):
        groups(table, schema=schema(("x", "timestamp[us, UTC]")), encoding="arrow")


@pytest.mark.parametrize("frame", [{"t": [1]}, [{"t": 1}], 5, "t", None])
def test_what_is_no_table_is_refused(frame: Any) -> None:
    with pytest.raises(UsageError, match=r"table of pandas \(2.2 or newer\), polars or Arrow, not "):
        groups(frame)


def test_a_table_that_arrow_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="column n"):
        groups(pd.DataFrame({"t": [1, 1], "n": [1, "x"]}))
    with pytest.raises(UsageError, match="cannot be read"):
        groups(Streamed(pa.chunked_array([[1]])))
    with pytest.raises(UsageError, match="'n' is there more than once"):
        groups(pa.table([[1], [2], [3]], names=["t", "n", "n"]))


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: groups(Streamed(None)), lambda: to_table([{"a": 1}])):
        with pytest.raises(UsageError, match=r'needs pyarrow.*pip install "epochal\[frames\]"'):
            call()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r'needs pandas.*pip install "epochal\[frames\]"'):
        epochal.Epoch(1, ()).to_pandas()


# ---- batches ----


def test_a_large_group_is_divided() -> None:
    (group,) = groups(pa.table({"t": [1] * 2500, "n": range(2500)}))
    sizes = [batch.records for batch in FrameEncoder("msgpack", encoder("msgpack"), None, 1024).batches(group, 1)]
    assert sizes == [1024, 1024, 452]
    wide = pa.table({"t": [1] * 20, "x": [b"x" * (1 << 20)] * 20})
    (group,) = groups(wide)
    batches = list(FrameEncoder("msgpack", encoder("msgpack"), None, 1024).batches(group, 1))
    assert max(len(batch.payload) for batch in batches) < 5 << 20
    assert sum(batch.records for batch in batches) == 20


@pytest.mark.parametrize("encoding", ["arrow", "msgpack"])
def test_rows_of_very_different_sizes_are_divided_until_they_fit(encoding: str) -> None:
    values = [b"x"] * 1000 + [b"y" * (5 << 20)] * 5
    (group,) = groups(pa.table({"t": [1] * 1005, "x": values}), encoding=encoding)
    batches = list(FrameEncoder(encoding, encoder(encoding), None, 2000).batches(group, 1))
    assert all(len(batch.payload) <= MAX_PAYLOAD for batch in batches)
    assert to_table(read(encoding, batches))["x"].to_pylist() == values
    (group,) = groups(pa.table({"t": [1], "x": [b"x" * (17 << 20)]}), encoding=encoding)
    with pytest.raises(PayloadTooLarge):
        list(FrameEncoder(encoding, encoder(encoding), None, 1024).batches(group, 1))


def test_a_record_batch_has_no_more_rows_than_a_reader_takes() -> None:
    (group,) = groups(
        pa.table({"t": pa.nulls(2_500_000, pa.int8()).fill_null(1), "x": pa.nulls(2_500_000)}), encoding="arrow"
    )
    batches = list(FrameEncoder("arrow", encoder("arrow"), None, 1024).batches(group, 1))
    assert [record.num_rows for record in read("arrow", batches)] == [1_000_000, 1_000_000, 500_000]


def test_a_column_that_arrow_cannot_sort_for_its_size_is_refused() -> None:
    chunk = pa.array(["x" * (64 << 20)])
    table = pa.table({"t": range(33, 0, -1), "x": pa.chunked_array([chunk] * 33)})
    with pytest.raises(UsageError, match="2 GiB, so append the frame in parts"):
        groups(table)


def test_rows_are_compared_with_the_schema() -> None:
    declared = schema(("at", "timestamp[us]"))
    (group,) = groups(pa.table({"t": [1], "at": [True]}), schema=declared)
    checks = record_checks(declared, "msgpack")
    with pytest.raises(RecordTypeError, match=r"a row is not .* its field at must be timestamp"):
        list(FrameEncoder("msgpack", encoder("msgpack"), checks, 9).batches(group, 1))


# ---- epochs as tables ----


def test_record_batches_are_put_together_without_a_copy() -> None:
    first, second = pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})
    table = to_table([first, second])
    assert table.to_pydict() == {"a": [1, 2, 3]}
    found = [chunk.buffers()[1].address for chunk in table["a"].chunks]
    assert found == [batch["a"].buffers()[1].address for batch in (first, second)]
    assert to_table([first, pa.record_batch({"b": ["x"]})]).to_pylist() == [
        {"a": 1, "b": None}, {"a": 2, "b": None}, {"a": None, "b": "x"},
    ]  # fmt: skip
    with pytest.raises(UsageError, match="different schemas"):
        to_table([first, pa.record_batch({"a": ["x"]})])


def test_mappings_become_rows() -> None:
    assert to_table([{"a": 1}, {"b": "x"}]).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert to_table([]).schema == pa.schema([])
    declared = schema(("a", "int32"), ("raw", "binary"), ("at", "timestamp[us]"))
    table = to_table([{"a": None, "raw": b"0", "at": "2024"}], declared)
    assert table.schema == pa.schema([("a", pa.int32()), ("raw", pa.binary()), ("at", pa.string())])


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([b"raw"], "one here is bytes"),
        ([{"a": 1}, 5], "one here is int"),
        ([{1: 2}], "other names"),
        ([{"a": 1}, {"a": "x"}], "values of 'a'"),
        ([{"a": 2**70}], "values of 'a'"),
        ([{"a": 1}, pa.record_batch({"a": [1]})], "one here is RecordBatch"),
    ],
)
def test_records_that_are_no_rows(records: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        to_table(records)


# ---- by real services ----


async def followed(client: epochal.Client, stream: str) -> list[epochal.Epoch]:
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        found = [epoch async for epoch in sub.epochs()]
    assert all(isinstance(epoch, epochal.Epoch) for epoch in found)
    return [epoch for epoch in found if isinstance(epoch, epochal.Epoch)]


@pytest.mark.parametrize("encoding", ["arrow", "json", "msgpack"])
async def test_a_frame_goes_through_a_stream(services, encoding: str) -> None:
    stream = await services.stream(encoding=encoding, segments=3)
    frame = pd.DataFrame(FLIGHTS)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            counts = await writer.append_frame(frame, time="hour", key="origin", topic=b"t", headers={b"h": b"1"})
            assert list(counts.items()) == [(1, 2), (2, 2)]
            assert writer.held == (0,)
            await writer.append_frame(Streamed(pa.table(FLIGHTS)), "hour")
            assert await writer.append_frame(frame[:0], "hour") == {}
            await writer.finish()
        epochs = await followed(client, stream)
    assert [epoch.time for epoch in epochs] == [1, 2]
    for epoch in epochs:
        wanted = pd.concat([frame, frame]).query(f"hour == {epoch.time}").drop(columns="hour")
        found, order = epoch.to_pandas(), ["origin", "delay"]
        pd.testing.assert_frame_equal(
            found.sort_values(order).reset_index(drop=True), wanted.sort_values(order).reset_index(drop=True)
        )
        assert epoch.to_arrow().schema == pa.schema([("origin", pa.string()), ("delay", pa.int64())])
        keyed = [batch for batch in epoch.batches if batch.topic == b"t"]
        assert {batch.headers[b"h"] for batch in keyed} == {b"1"}
        assert {batch.segment for batch in keyed if batch.key == b"LGA"} == {writer.segment(b"LGA")} or epoch.time == 2


async def test_frames_of_a_declared_schema(services) -> None:
    for encoding in ("arrow", "msgpack"):
        stream = await services.stream(payload={"encoding": encoding, "schema": {"fields": FIELDS}})
        async with epochal.connect(services.url) as client:
            async with client.writer(stream) as writer:
                await writer.append_frame(pd.DataFrame({"origin": ["JFK"], "delay": [None]}), at=1)
                await writer.append_frame(pd.DataFrame({"origin": ["JFK"], "delay": [2.0]}), at=2)
                with pytest.raises(UsageError, match="'delay' is string"):
                    await writer.append_frame(pd.DataFrame({"origin": ["JFK"], "delay": ["late"]}), at=2)
                await writer.finish()
            epochs = await followed(client, stream)
        assert [epoch.to_arrow()["delay"].to_pylist() for epoch in epochs] == [[None], [2]]
        assert {epoch.to_arrow().schema.field("delay").type for epoch in epochs} == {pa.int32()}


async def test_nothing_of_a_frame_that_is_wrong_is_appended(services) -> None:
    stream = await services.stream(encoding="msgpack")
    async with epochal.connect(services.url) as client:
        with pytest.raises(UsageError, match="async with"):
            await client.writer(stream).append_frame(pd.DataFrame(FLIGHTS), at=1)
        async with client.writer(stream) as writer:
            await writer.advance(1)
            right = pd.DataFrame(FLIGHTS)
            too_large = pa.table({"hour": [1, 2], "x": [b"", b"x" * (17 << 20)]})
            for frame, options, error in (
                (right.assign(hour=[2, 1, 2, None]), {"time": "hour"}, TimeShapeError),
                (right.assign(hour=[2, 0, 2, 1]), {"time": "hour"}, CapabilityError),
                (too_large, {"time": "hour"}, PayloadTooLarge),
                (right, {"time": "hour", "topic": "t"}, UsageError),
                (right, {"time": "hour", "headers": {b"h": "1"}}, UsageError),
                (right, {"time": "hour", "at": 1}, UsageError),
                (right, {}, UsageError),
                (right, {"at": (1, 2)}, TimeShapeError),
                (right[:0], {"at": [1]}, TimeShapeError),
            ):
                with pytest.raises(error):
                    await writer.append_frame(frame, **options)
            await writer.abort(2)
            with pytest.raises(EpochAbortedError):
                await writer.append_frame(right, "hour")
            assert writer.pending_epochs == ()
            assert await writer.append_frame(right, at=7) == {7: 4}
            await writer.finish()
            with pytest.raises(WriterClosed):
                await writer.append_frame(right, at=7)
        async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
            epochs = [epoch async for epoch in sub.epochs()]
        assert [(epoch.time, isinstance(epoch, epochal.Epoch) and epoch.count) for epoch in epochs] == [
            (2, False),
            (7, 4),
        ]


async def test_a_frame_comes_after_the_records_that_were_gathered_before(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, linger=60.0) as writer:
            writer.append_nowait(1, [{"n": 1}], key=b"k")
            await writer.append_frame(pa.table({"t": [1], "k": ["k"], "n": [2]}), "t", key="k")
            await writer.finish()
        (epoch,) = await followed(client, stream)
    assert [record["n"] for record in epoch.records()] == [1, 2]


async def test_a_writer_with_a_codec_takes_columns_of_its_own_times(services) -> None:
    first = datetime.date(2024, 1, 1)
    codec = TimeCodec[datetime.date](lambda day: (day - first).days, lambda time: datetime.date(1970, 1, 1))
    stream = await services.stream()
    days = [first + datetime.timedelta(days=1), first]
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, time_codec=codec) as writer:
            counts = await writer.append_frame(pa.table({"day": days, "n": [1, 2]}), "day")
            assert list(counts) == sorted(days)
            await writer.append_frame(pa.table({"n": [3]}), at=first)
            await writer.finish()
        epochs = await followed(client, stream)
    assert [(epoch.time, [record["n"] for record in epoch.records()]) for epoch in epochs] == [(0, [2, 3]), (1, [1])]


def test_the_blocking_client_takes_frames(services) -> None:
    stream = asyncio.run(services.stream(shape="(int, int)", encoding="arrow"))
    frame = pd.DataFrame({"day": [1, 1], "hour": [3, 2], "n": [1, 2]})
    with epochal.connect_blocking(services.url) as client:
        with client.writer(stream) as writer:
            assert writer.append_frame(frame, ["day", "hour"]) == {(1, 2): 1, (1, 3): 1}
            writer.finish()
        with client.subscribe(stream, since="start") as sub:
            epochs = [epoch for epoch in sub.epochs(timeout=PATIENCE) if isinstance(epoch, epochal.Epoch)]
    assert {epoch.time: epoch.to_pandas()["n"].tolist() for epoch in epochs} == {(1, 2): [2], (1, 3): [1]}
