"""Every type of a column, from each library, in each encoding, there and back: as it was, or refused by its name."""

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import epochal
from epochal.client.encoding import frames
from epochal.client.encoding.encodings import decoder, encoder
from epochal.client.encoding.plain_columns import plain_column
from epochal.client.encoding.record_checks import record_checks
from epochal.client.encoding.tables import to_pandas, to_table
from epochal.client.writer.frame_batches import FrameEncoder
from epochal.errors import RecordTypeError, UsageError
from epochal.resources.schemas import Schema

LARGE = 2**60 + 1
"""An integer that no float holds."""
NOON = datetime.datetime(2024, 5, 1, 12, 0, 0, 1)
IN_UTC = NOON.replace(tzinfo=datetime.UTC)
ALL, NOT_JSON, ONLY_ARROW = ("arrow", "msgpack", "json"), ("arrow", "msgpack"), ("arrow",)


def dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([*range(len(values)), None], pa.uint32()), values)


def plain(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.array([*values, None], kind)


COLUMNS: dict[str, tuple[pa.Array, tuple[str, ...]]] = {
    "bool": (plain(pa.bool_(), True, False), ALL),
    "int8": (plain(pa.int8(), -128), ALL),
    "int64": (plain(pa.int64(), LARGE, -LARGE), ALL),
    "uint64": (plain(pa.uint64(), 2**64 - 1), ALL),
    "float16": (plain(pa.float16(), np.float16(1.5)), ALL),
    "float32": (plain(pa.float32(), 0.5), ALL),
    "float64": (plain(pa.float64(), 0.1), ALL),
    "null": (pa.nulls(2), ALL),
    "string": (plain(pa.string(), "é"), ALL),
    "large_string": (plain(pa.large_string(), "é"), ALL),
    "string_view": (plain(pa.string_view(), "é", "longer than twelve bytes"), ALL),
    "binary": (plain(pa.binary(), b"\xff"), NOT_JSON),
    "large_binary": (plain(pa.large_binary(), b"\xff"), NOT_JSON),
    "binary_view": (plain(pa.binary_view(), b"\xff"), NOT_JSON),
    "fixed_size_binary": (plain(pa.binary(2), b"\xff\x00"), NOT_JSON),
    "date32": (plain(pa.date32(), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)), ONLY_ARROW),
    "date64": (plain(pa.date64(), datetime.date(1500, 1, 1)), ONLY_ARROW),
    "time32": (plain(pa.time32("ms"), datetime.time(1, 2)), ONLY_ARROW),
    "time64": (plain(pa.time64("ns"), datetime.time(1, 2, 3, 4)), ONLY_ARROW),
    "timestamp s": (plain(pa.timestamp("s"), datetime.datetime(5000, 1, 1)), ONLY_ARROW),
    "timestamp us": (plain(pa.timestamp("us"), NOON, datetime.datetime(1500, 1, 1)), ONLY_ARROW),
    "timestamp ns": (plain(pa.timestamp("ns"), pd.Timestamp(10**18 + 1)), ONLY_ARROW),
    "timestamp us of a zone": (plain(pa.timestamp("us", "Europe/Paris"), IN_UTC), ONLY_ARROW),
    "timestamp ns of a zone": (plain(pa.timestamp("ns", "UTC"), pd.Timestamp(10**18 + 1, tz="UTC")), ONLY_ARROW),
    "duration": (plain(pa.duration("ns"), pd.Timedelta(10**15 + 1)), ONLY_ARROW),
    "decimal128": (plain(pa.decimal128(38, 2), decimal.Decimal(10**30) / 4), ONLY_ARROW),
    "decimal256": (plain(pa.decimal256(60, 0), decimal.Decimal(10**50)), ONLY_ARROW),
    "interval": (pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), ONLY_ARROW),
    "dictionary": (dictionary(pa.array(["a", "b"])), ALL),
    "dictionary of ints": (dictionary(pa.array([LARGE])), ALL),
    "dictionary of string_view": (dictionary(pa.array(["a", "b"]).cast(pa.string_view())), ALL),
    "run_end_encoded": (pa.RunEndEncodedArray.from_arrays([2, 3], [LARGE, None]), ALL),
    "list": (plain(pa.list_(pa.int64()), [LARGE, None], []), ALL),
    "large_list": (plain(pa.large_list(pa.large_string()), ["a", None], []), ALL),
    "list_view": (plain(pa.list_view(pa.int64()), [LARGE], None, [None, 3]), ALL),
    "large_list_view": (plain(pa.large_list_view(pa.string()), ["a"], None, ["b", None]), ALL),
    "list of string_view": (plain(pa.list_(pa.string_view()), ["a"], [None]), ALL),
    "list of dictionaries": (plain(pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", "b"], ["a"]), ALL),
    "list of booleans": (plain(pa.list_(pa.bool_()), [True, None]), ALL),
    "fixed_size_list": (plain(pa.list_(pa.int64(), 2), [LARGE, None]), ALL),
    "fixed_size_list of views": (plain(pa.list_(pa.string_view(), 2), ["a", None]), ALL),
    "struct": (plain(pa.struct({"a": pa.int64(), "b": pa.string_view()}), {"a": LARGE, "b": "x"}, {"a": None}), ALL),
    "struct of lists": (plain(pa.struct({"a": pa.list_(pa.uint64())}), {"a": [2**63 - 1, None]}), ALL),
    "list of zoned times": (plain(pa.list_(pa.timestamp("us", "UTC")), [IN_UTC, None]), ONLY_ARROW),
    "struct of times": (plain(pa.struct({"a": pa.timestamp("ns"), "d": pa.duration("us")}),
                              {"a": pd.Timestamp(10**18 + 1), "d": datetime.timedelta(1)}), ONLY_ARROW),
    "map": (plain(pa.map_(pa.string(), pa.int64()), [("a", LARGE), ("b", None)], []), ALL),
    "map of views": (plain(pa.map_(pa.string_view(), pa.string_view()), [("a", "x")], []), ALL),
    "map of ints": (plain(pa.map_(pa.int64(), pa.string()), [(LARGE, "a")]), ONLY_ARROW),
}  # fmt: skip


def through(frame: Any, encoding: str, schema: Schema | None = None) -> pa.Table:
    """The frame as a reader gets it."""
    encode = FrameEncoder(encoding, encoder(encoding, schema), record_checks(schema, encoding), 1024)
    found = []
    for group in frames.groups(frames.read(frame, None, None, encoding=encoding, schema=schema), lambda key: ""):
        for batch in encode.batches(group, 1):
            found += decoder(encoding)(batch.payload)
    return to_table(found, schema)


def declared(kind: str) -> Schema:
    return Schema.parse({"fields": [{"name": "x", "type": kind}]})


def values(column: pa.ChunkedArray) -> list[Any]:
    return [simple(value) for value in column.to_pylist(maps_as_pydicts=None)]


def simple(value: Any) -> Any:
    """A value of Arrow or pandas as plain Python has it; a map is a dict, and what is missing None."""
    if isinstance(value, dict):
        return {name: simple(member) for name, member in value.items()}
    if isinstance(value, list | tuple | np.ndarray) and not isinstance(value, pa.MonthDayNano):
        found = [simple(item) for item in value]
        pairs = bool(found) and all(type(item) is tuple for item in value)
        return dict(found) if pairs else found
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, np.datetime64):
        return pd.Timestamp(value)
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_arrow_is_the_same_in_each_encoding_or_refused_by_its_name(name: str, encoding: str) -> None:
    array, encodings = COLUMNS[name]
    table = pa.table({"x": array})
    if encoding not in encodings:
        with pytest.raises(UsageError, match=f"column 'x' is .*, which {encoding} cannot carry"):
            through(table, encoding)
        return
    found = through(table, encoding)
    found["x"].validate(full=True)
    wanted = values(pa.chunked_array([plain_column(pa.chunked_array([array]), "x").combine_chunks()]))
    assert values(table["x"]) == wanted
    if encoding != "arrow" and pa.types.is_map(array.type):  # a record has a mapping, and a table of these a struct
        names = [name for value in wanted if value for name in value]
        wanted = [None if value is None else {name: dict(value).get(name) for name in names} for value in wanted]
    assert values(found["x"]) == wanted


@pytest.mark.parametrize("name", COLUMNS)
def test_pandas_has_each_value_as_it_is(name: str) -> None:
    array, _ = COLUMNS[name]
    found = through(pa.table({"x": array}), "arrow")
    if name in ("interval",):
        assert to_pandas(found)["x"].tolist() == [pd.DateOffset(months=1, days=2, nanoseconds=3), None]
        return
    given = [None if value != value else value for value in map(simple, to_pandas(found)["x"].tolist())]
    assert given == values(found["x"])
    assert [type(value) for value in given if isinstance(value, bool | int | float)] == [
        type(value) for value in values(found["x"]) if isinstance(value, bool | int | float)
    ]


@pytest.mark.parametrize("slices", [(1, None), (0, 2), (1, 1), (0, 0)])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_slice_of_a_column_is_that_slice(name: str, slices: tuple[int, int | None]) -> None:
    column = pa.chunked_array([COLUMNS[name][0]]).slice(*slices)
    found = plain_column(column, "x")
    found.validate(full=True)
    assert values(found) == values(column)


POLARS: dict[str, tuple[pl.Series, tuple[str, ...]]] = {
    "Categorical": (pl.Series(["a", None, "b"], dtype=pl.Categorical), ALL),
    "Enum": (pl.Series(["a", None, "b"], dtype=pl.Enum(["b", "a"])), ALL),
    "List(Categorical)": (pl.Series([["a"], None, ["b", None]], dtype=pl.List(pl.Categorical)), ALL),
    "Array(Enum)": (pl.Series([["a", "b"], None], dtype=pl.Array(pl.Enum(["a", "b"]), 2)), ALL),
    "Struct(Categorical)": (pl.Series([{"c": "a"}, {"c": None}], dtype=pl.Struct({"c": pl.Categorical})), ALL),
    "Boolean": (pl.Series([True, None]), ALL),
    "Int64": (pl.Series([LARGE, None]), ALL),
    "UInt64": (pl.Series([2**64 - 1, None], dtype=pl.UInt64), ALL),
    "Float64": (pl.Series([0.1, None]), ALL),
    "String": (pl.Series(["é", None]), ALL),
    "List(Int64)": (pl.Series([[LARGE, None], None, []], dtype=pl.List(pl.Int64)), ALL),
    "Array(Int64)": (pl.Series([[LARGE, None], None], dtype=pl.Array(pl.Int64, 2)), ALL),
    "Struct": (pl.Series([{"a": LARGE, "b": "x"}, {"a": None, "b": None}]), ALL),
    "Null": (pl.Series([None, None]), ALL),
    "Binary": (pl.Series([b"\xff", None]), NOT_JSON),
    "Date": (pl.Series([datetime.date(1, 1, 1), None]), ONLY_ARROW),
    "Time": (pl.Series([datetime.time(1, 2, 3, 4), None]), ONLY_ARROW),
    "Datetime(us)": (pl.Series([NOON, None]), ONLY_ARROW),
    "Datetime(us, UTC)": (pl.Series([IN_UTC, None]), ONLY_ARROW),
    "Datetime(ns)": (pl.Series([10**18 + 1, None]).cast(pl.Datetime("ns")), ONLY_ARROW),
    "Duration": (pl.Series([datetime.timedelta(1), None]), ONLY_ARROW),
    "Decimal": (pl.Series([decimal.Decimal("1.25"), None]), ONLY_ARROW),
}


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("name", POLARS)
def test_a_column_of_polars_is_the_same_in_each_encoding_or_refused_by_its_name(name: str, encoding: str) -> None:
    series, encodings = POLARS[name]
    frame = series.to_frame("x")
    if encoding not in encodings:
        with pytest.raises(UsageError, match=f"column 'x' is .*, which {encoding} cannot carry"):
            through(frame, encoding)
        return
    back = pl.from_arrow(through(frame, encoding))
    assert isinstance(back, pl.DataFrame)
    assert back["x"].to_list() == series.to_list()


PANDAS: dict[str, tuple[pd.Series, tuple[str, ...]]] = {
    "int64": (pd.Series([LARGE, -LARGE]), ALL),
    "Int64": (pd.Series([LARGE, None], dtype="Int64"), ALL),
    "UInt64": (pd.Series([2**64 - 1, None], dtype="UInt64"), ALL),
    "boolean": (pd.Series([True, None], dtype="boolean"), ALL),
    "float64": (pd.Series([0.1, None]), ALL),
    "Float64": (pd.Series([0.1, None], dtype="Float64"), ALL),
    "object": (pd.Series(["é", None]), ALL),
    "category": (pd.Series(["a", None, "b"], dtype="category"), ALL),
    "lists": (pd.Series([[LARGE, None], None]), ALL),
    "ArrowDtype": (pd.Series([LARGE, None], dtype=pd.ArrowDtype(pa.int64())), ALL),
    "bytes": (pd.Series([b"\xff", None]), NOT_JSON),
    "datetime64[ns]": (pd.Series([pd.Timestamp(10**18 + 1), None]), ONLY_ARROW),
    "datetime64[s]": (pd.Series(np.array(["5000-01-01"], "datetime64[s]")), ONLY_ARROW),
    "datetime64[ns, zone]": (pd.Series([pd.Timestamp(10**18 + 1, tz="Europe/Paris"), None]), ONLY_ARROW),
    "timedelta64[ns]": (pd.Series([pd.Timedelta(10**15 + 1), None]), ONLY_ARROW),
    "dates": (pd.Series([datetime.date(1500, 1, 1), None]), ONLY_ARROW),
    "decimals": (pd.Series([decimal.Decimal("1.25"), None]), ONLY_ARROW),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("name", PANDAS)
def test_a_column_of_pandas_is_the_same_in_each_encoding_or_refused_by_its_name(name: str, encoding: str) -> None:
    series, encodings = PANDAS[name]
    frame = pd.DataFrame({"x": series})
    if encoding not in encodings:
        with pytest.raises(UsageError, match=f"column 'x' is .*, which {encoding} cannot carry"):
            through(frame, encoding)
        return
    back = to_pandas(through(frame, encoding))["x"].tolist()
    assert [*map(missing, back)] == [*map(missing, series.tolist())]


def missing(value: Any) -> Any:
    value = simple(value)
    return None if value != value else value


# ---- pandas: what holds null ----


def test_ids_of_64_bits_with_a_null_are_exact_in_pandas() -> None:
    ids = [9007199254740993, None, 2018226901]
    for schema in (None, declared("int64")):
        for encoding in ALL:
            found = to_pandas(through(pa.table({"x": ids}), encoding, schema))["x"]
            assert str(found.dtype) == "Int64"
            assert found[0] == 9007199254740993
            assert found.isna().tolist() == [False, True, False]
    epoch = epochal.Epoch(1, (epochal.Data(1, b"", "0", 0, 2, encoder("msgpack")([{"x": LARGE}, {"x": None}]),
                                           decoder("msgpack")),))  # fmt: skip
    assert epoch.to_pandas()["x"].tolist() == [LARGE, pd.NA]


def test_columns_without_null_keep_the_plain_types_of_pandas() -> None:
    table = pa.table({"i": [1], "b": [True], "f": [1.5], "s": ["a"]})
    assert [str(kind) for kind in to_pandas(table).dtypes] == ["int64", "bool", "float64", "object"]


def test_null_and_nan_are_distinguished() -> None:
    for kind in (pa.float32(), pa.float64()):
        both = to_pandas(pa.table({"x": pa.array([1.0, None, math.nan], kind)}))["x"]
        assert str(both.dtype) == f"Float{kind.bit_width}"
        assert both[1] is pd.NA
        assert math.isnan(both[2])
    assert str(to_pandas(pa.table({"x": [1.0, None]})).x.dtype) == "float64"


def test_an_index_of_pandas_and_names_that_are_there_twice() -> None:
    frame = pd.DataFrame({"id": pd.array([LARGE, None], "Int64")}, index=pd.Index([5, 6], name="at"))
    batch = pa.RecordBatch.from_pandas(frame)
    pd.testing.assert_frame_equal(to_pandas(to_table([batch])), frame)
    twice = to_pandas(pa.table([[1, None], [LARGE, None]], names=["a", "a"]))
    assert [twice.iloc[0, 0], twice.iloc[0, 1]] == [1, LARGE]
    assert {str(kind) for kind in twice.dtypes} == {"Int64"}


@pytest.mark.parametrize(
    "array",
    [
        pa.array([10**7], pa.int32()).cast(pa.date32()),
        pa.array([1], pa.int64()).cast(pa.time64("ns")),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        pa.StructArray.from_arrays([pa.array([1], pa.int64()).cast(pa.duration("us")),
                                    pa.array([1], pa.int64()).cast(pa.time64("ns"))], ["d", "t"]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
    ],
    ids=["date", "time", "union", "struct", "members"],
)  # fmt: skip
def test_what_pandas_cannot_hold_is_refused_by_the_name_of_its_column(array: pa.Array) -> None:
    with pytest.raises(UsageError, match="column 'x'"):
        to_pandas(pa.table({"n": [1], "x": array}))


# ---- what would change, or has no name of its own ----


def twice(inner: Callable[[pa.Array], pa.Array] = lambda array: array) -> pa.Table:
    return pa.table({"x": inner(pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))})


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (twice(), "column 'x' has the member 'a' more than once"),
        (twice(lambda array: pa.ListArray.from_arrays([0, 1], array)), r"column 'x\[\]' has the member 'a'"),
        (twice(lambda array: pa.StructArray.from_arrays([array], ["m"])), r"column 'x\.m' has the member 'a'"),
        (pl.DataFrame({"n": [1], "x": pl.Series([object()], dtype=pl.Object)}), "column 'x' holds Python objects"),
        (pl.DataFrame({"n": [1], "x": pl.Series([1], dtype=pl.Int128)}), "column 'x'"),
        (pd.DataFrame({"n": [1, 1], "x": pd.Series(["a", b"b"], dtype=object)}), "'x' holds text and bytes"),
        (pd.DataFrame({"x": pd.Series([["a"], [b"b"]], dtype=object)}), "'x' holds text and bytes"),
        (pd.DataFrame({"x": pd.Series([1.5, True], dtype=object)}), "'x' holds booleans and numbers"),
        (pd.DataFrame({"x": pd.Series([NOON.date(), NOON], dtype=object)}), "'x' holds dates and datetimes"),
        (pd.DataFrame({"x": pd.Series([NOON, IN_UTC], dtype=object)}), "'x' holds datetimes with and without a zone"),
        (pd.DataFrame({"x": pd.Series([pd.Timestamp(1)], dtype=object)}), "'x' holds times with nanoseconds"),
        (pd.DataFrame({"x": pd.Series([2**64], dtype=object)}), "column 'x'"),
    ],
)  # fmt: skip
def test_what_would_change_is_refused_by_the_name_of_its_column(frame: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        through(frame, "arrow")


@pytest.mark.parametrize(
    ("kind", "array", "words"),
    [
        ("float32", pa.array([0.5, 0.1]), "'x' is double, and float cannot hold it: 0.1 is rounded"),
        ("float32", pa.array([1e300]), "'x' is double, and float cannot hold it: 1e[+]300"),
        ("list<float32>", pa.array([[0.5], None, [0.1]]), r"'x\[\]' is double, and float cannot hold it"),
        ("struct<a: float32>", pa.array([{"a": 0.1}]), r"'x\.a' is double, and float cannot hold it"),
        ("float64", pa.array([2**53 + 1]), "'x' is int64, and double cannot hold it"),
        ("int64", pa.array([2**63], pa.uint64()), "'x' is uint64, and int64 cannot hold it"),
        ("list<int32>", pa.array([[LARGE]]), "'x' is list.*, and list.* cannot hold it"),
        ("timestamp[us]", pa.array([1], pa.int64()).cast(pa.timestamp("ns")), "'x' is timestamp.* cannot hold it"),
        ("timestamp[ns]", pa.array([datetime.datetime(5000, 1, 1)]), "'x' is timestamp.* cannot hold it"),
        ("decimal128(10, 1)", pa.array([decimal.Decimal("1.25")]), "'x' is decimal.* cannot hold it"),
    ],
)  # fmt: skip
def test_a_cast_to_the_declared_type_never_changes_a_value(kind: str, array: pa.Array, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        through(pa.table({"x": array}), "arrow", declared(kind))


def test_a_cast_that_keeps_each_value_is_made() -> None:
    for kind, array in (
        ("float32", pa.array([0.5, math.nan, math.inf, None])),
        ("list<float32>", pa.array([[0.5, None], None])),
        ("struct<b: float32, a: int64>", pa.array([{"b": 2.5, "a": 1}, None])),
        ("list<string>", plain(pa.list_view(pa.string_view()), ["a"])),
        ("string", dictionary(pa.array(["a"]).cast(pa.string_view()))),
        ("list<int64>", plain(pa.list_(pa.int32(), 2), [1, None])),
        ("list<float64>", pa.nulls(2)),
        ("list<list<float32>>", pa.array([[None], None])),
        ("struct<a: list<float32>>", pa.array([{"a": None}])),
    ):
        found = through(pa.table({"x": array}), "arrow", declared(kind))["x"]
        assert str(values(found)) == str(values(pa.chunked_array([array])))  # NaN is no equal of itself


def test_a_part_of_a_column_that_an_encoding_has_not_is_named() -> None:
    nested = pa.table({"x": pa.array([[{"b": b"0"}]])})
    with pytest.raises(UsageError, match=r"column 'x' is list.*, which json cannot carry \(x\[\]\.b is binary\)"):
        through(nested, "json")
    with pytest.raises(UsageError, match=r"column 'x\[\]\.b' holds NaN or infinity"):
        through(pa.table({"x": pa.array([[{"b": math.nan}]])}), "json")
    with pytest.raises(UsageError, match=r"column 'x{}' holds NaN or infinity"):
        through(
            pa.table({"x": pa.array([[("a", 1.0)], [("b", math.inf)]], pa.map_(pa.string(), pa.float64()))}), "json"
        )
    repeated = pa.table({"x": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(RecordTypeError, match="column 'x' holds a map with a key twice"):
        through(repeated, "msgpack")


# ---- records of msgpack and json as tables ----


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a", b"b"], "text and bytes"),
        ([["a"], [b"b"]], "text and bytes"),
        ([1.5, True], "booleans and numbers"),
        ([{"a": [1.5]}, {"a": [True]}], "booleans and numbers"),
        ([2**53 + 1, 1.5], "9007199254740993"),
        ([2**63, -1], "negative"),
        ([2**64], "too large|too big"),
    ],
)
def test_values_that_one_column_cannot_keep_apart_are_refused_by_its_name(given: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=f"'x' .*({words})"):
        to_table([{"x": value} for value in given])


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int64", [1, 1.5]),
        ("list<int64>", [[1.5]]),
        ("float64", [True]),
        ("string", [b"x"]),
        ("struct<a: int64>", [{"a": 1, "b": 2}]),
        ("float64", [2**53 + 1]),
        ("float32", [1e300]),
    ],
)
def test_values_that_are_not_of_the_declared_type_are_refused_by_their_name(kind: str, given: list[Any]) -> None:
    with pytest.raises(UsageError, match="'x'"):
        to_table([{"x": value} for value in given], declared(kind))


def test_ints_of_msgpack_and_json_are_exact() -> None:
    for encoding in ("msgpack", "json"):
        records = decoder(encoding)(encoder(encoding)([{"x": 2**64 - 1}, {"x": 2**53 + 1}, {"x": None}]))
        found = to_pandas(to_table(records))["x"]
        assert (str(found.dtype), found[0], found[1], found[2]) == ("UInt64", 2**64 - 1, 2**53 + 1, pd.NA)
    huge = decoder("json")(encoder("json")([10**40]))
    assert huge == [10**40]
