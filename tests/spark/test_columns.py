"""Arrow batches divided by time and segment, and what a record holds."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.client.encoding.columns import key_bytes, maps
from epochal.errors import RecordTypeError, TimeShapeError
from epochal_spark.payload import groups


def place(key: bytes | None) -> str:
    return "" if key is None else str(key[-1] % 2)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcd"), st.integers()), max_size=60))
def test_every_row_is_in_the_group_of_its_time_and_segment_in_order(rows: list[tuple[int, str, int]]) -> None:
    rows = [(time, key, n % 1000) for time, key, n in rows]
    schema = pa.schema([("t", pa.int32()), ("k", pa.string()), ("n", pa.int64())])
    given_rows = pa.RecordBatch.from_pylist([{"t": t, "k": k, "n": n} for t, k, n in rows], schema=schema)
    found = list(groups(given_rows, "t", "k", place))
    assert len({(group.time, group.segment) for group in found}) == len(found)
    assert [group.time for group in found] == sorted(group.time for group in found)
    for group in found:
        wanted = [{"k": k, "n": n} for t, k, n in rows if (t, place(k.encode())) == (group.time, group.segment)]
        assert maps(group.rows.drop_columns(["t"])) == wanted
        assert group.key is not None
        assert place(group.key) == group.segment
    assert sum(group.rows.num_rows for group in found) == len(rows)


def test_nested_times_are_read_from_structs_and_come_in_their_order() -> None:
    times = [{"a": 2, "b": {"c": 0, "d": 1}}, {"a": 1, "b": {"c": 5, "d": 0}}, {"a": 1, "b": {"c": 5, "d": 0}}]
    found = list(groups(batch(t=times, n=[1, 2, 3]), "t", None, place))
    assert [(group.time, maps(group.rows.drop_columns(["t"]))) for group in found] == [
        ((1, (5, 0)), [{"n": 2}, {"n": 3}]),
        ((2, (0, 1)), [{"n": 1}]),
    ]


@pytest.mark.parametrize(
    ("times", "word"), [([1, None], "null"), ([1, -4], "-4"), ([0.5, 1.0], "double"), ([{"a": 1}, None], "null")]
)
def test_a_time_that_is_none_is_refused(times: list[Any], word: str) -> None:
    with pytest.raises(TimeShapeError, match=word):
        list(groups(batch(t=times, n=[1, 2]), "t", None, place))


def test_a_null_key_is_no_key_and_numbers_are_keys_too() -> None:
    found = list(groups(batch(t=[1, 1, 1], k=[8, None, 9]), "t", "k", place))
    assert sorted((group.segment, group.key) for group in found if group.key) == [("0", b"8"), ("1", b"9")]
    assert [maps(group.rows) for group in found if group.key is None] == [[{"t": 1, "k": None}]]
    with pytest.raises(RecordTypeError):
        key_bytes(1.5)
