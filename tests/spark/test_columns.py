"""Arrow batches divided by time, segment and topic, and what a record holds."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.client.encoding.columns import key_bytes, maps
from epochal.errors import RecordTypeError, TimeShapeError, UsageError
from epochal_spark.payload import groups


def place(key: bytes | None) -> str:
    return "" if key is None else str(key[-1] % 2)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


Row = tuple[int, str, str | None, int]
SCHEMA = pa.schema([("t", pa.int32()), ("k", pa.string()), ("o", pa.string()), ("n", pa.int64())])
ROWS = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from("abcd"), st.sampled_from(["JFK", "LGA", "", None]), st.integers(0, 999)
    ),
    max_size=60,
)


def given_rows(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip("tkon", row, strict=True)) for row in rows], schema=SCHEMA)


@pytest.mark.parametrize(("key", "topic"), [("k", "o"), ("k", None), (None, "o")])
@given(ROWS)
def test_every_row_is_in_the_group_of_its_time_segment_and_topic_in_order(
    key: str | None, topic: str | None, rows: list[Row]
) -> None:
    def home(row: Row) -> tuple[int, str, bytes]:
        t, k, o, _ = row
        return t, place(k.encode() if key else None), (o or "").encode() if topic else b""

    found = list(groups(given_rows(rows), "t", key, topic, place))
    assert [(group.time, group.segment, group.topic) for group in found] == list(
        dict.fromkeys(sorted(map(home, rows), key=lambda at: (at[0], _first(rows, key, at[1]), at[2])))
    )
    for group in found:
        wanted = [row for row in rows if home(row) == (group.time, group.segment, group.topic)]
        assert maps(group.rows) == maps(given_rows(wanted))
        assert place(group.key) == group.segment


def _first(rows: list[Row], key: str | None, segment: str) -> int:
    """Where the first row of a segment is."""
    return next(at for at, (_, k, _, _) in enumerate(rows) if place(k.encode() if key else None) == segment)


@pytest.mark.rule("E49")
@given(ROWS, st.randoms(use_true_random=False))
def test_the_same_topics_come_in_the_same_order_whatever_the_order_of_rows(rows: list[Row], chance: Any) -> None:
    turned = rows.copy()
    chance.shuffle(turned)
    first, again = (
        [(group.time, group.topic) for group in groups(given_rows(given), "t", None, "o", place)]
        for given in (rows, turned)
    )
    assert first == again


def test_nested_times_are_read_from_structs_and_come_in_their_order() -> None:
    times = [{"a": 2, "b": {"c": 0, "d": 1}}, {"a": 1, "b": {"c": 5, "d": 0}}, {"a": 1, "b": {"c": 5, "d": 0}}]
    found = list(groups(batch(t=times, n=[1, 2, 3]), "t", None, None, place))
    assert [(group.time, maps(group.rows.drop_columns(["t"]))) for group in found] == [
        ((1, (5, 0)), [{"n": 2}, {"n": 3}]),
        ((2, (0, 1)), [{"n": 1}]),
    ]


@pytest.mark.parametrize(
    ("times", "word"), [([1, None], "null"), ([1, -4], "-4"), ([0.5, 1.0], "double"), ([{"a": 1}, None], "null")]
)
def test_a_time_that_is_none_is_refused(times: list[Any], word: str) -> None:
    with pytest.raises(TimeShapeError, match=word):
        list(groups(batch(t=times, n=[1, 2]), "t", None, None, place))


def test_a_null_key_is_no_key_and_numbers_are_keys_too() -> None:
    found = list(groups(batch(t=[1, 1, 1], k=[8, None, 9]), "t", "k", None, place))
    assert sorted((group.segment, group.key) for group in found if group.key) == [("0", b"8"), ("1", b"9")]
    assert [maps(group.rows) for group in found if group.key is None] == [[{"t": 1, "k": None}]]
    with pytest.raises(RecordTypeError):
        key_bytes(1.5)


def test_a_key_has_at_most_1024_bytes_and_a_longer_one_is_named_in_short() -> None:
    assert [group.key for group in groups(batch(t=[1], k=["x" * 1024]), "t", "k", None, place)] == [b"x" * 1024]
    with pytest.raises(UsageError, match=r"the key column 'k' holds a key of 1,025 bytes, .* at most 1,024 bytes"):
        list(groups(batch(t=[1, 1], k=["JFK", "x" * 1025]), "t", "k", None, place))


def test_null_is_the_empty_topic_and_bytes_are_topics_too() -> None:
    found = list(groups(batch(t=[1, 1, 1], o=[None, b"\xff", b""]), "t", None, "o", place))
    assert [(group.topic, group.rows.num_rows) for group in found] == [(b"", 2), (b"\xff", 1)]


def test_a_topic_has_at_most_1024_bytes_and_a_longer_one_is_named_in_short() -> None:
    longest = "ü" * 512
    assert [group.topic for group in groups(batch(t=[1], o=[longest]), "t", None, "o", place)] == [longest.encode()]
    with pytest.raises(UsageError) as error:
        list(groups(batch(t=[1, 1], o=["JFK", longest + "x"]), "t", None, "o", place))
    assert str(error.value) == (
        f"the topic column 'o' holds a topic of 1,025 bytes, which begins with {'ü' * 30!r}; a topic has at most 1,024 "
        "bytes"
    )
