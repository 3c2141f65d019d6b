"""Records to payloads and back, for each encoding."""

import os
import subprocess
import sys
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.patience import PATIENCE

from epochal.client.encoding.encodings import MAX_NESTING, MAX_RECORDS, _check_readable, decoder, encoder
from epochal.errors import PayloadTooLarge, RecordTypeError, RemoteProtocolError

TABLE = pa.record_batch({"a": [1, 2]})


@pytest.mark.parametrize(
    ("encoding", "records"),
    [
        ("bytes", [b"", b"\0\xff", b"x" * 100_000]),
        ("msgpack", [None, True, -1, 2**64 - 1, 1.5, "é", b"\0", [1, [2]], {"a": {1: "b"}}]),
        ("json", [None, True, -1, 1.5, "é\u2028", [1, [2]], {"a": {"b": "c"}}]),
    ],
)
def test_what_goes_in_comes_out(encoding: str, records: list[Any]) -> None:
    assert decoder(encoding)(encoder(encoding)(records)) == records
    assert decoder(encoding)(encoder(encoding)(tuple(records))) == records


def test_arrow_record_batches() -> None:
    decoded = decoder("arrow")(encoder("arrow")([TABLE, TABLE]))
    assert [batch.to_pydict() for batch in decoded] == [{"a": [1, 2]}, {"a": [1, 2]}]


def test_what_is_like_bytes_is_bytes() -> None:
    assert decoder("bytes")(encoder("bytes")([bytearray(b"a"), memoryview(b"b")])) == [b"a", b"b"]


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("encoding", "record"),
    [
        ("bytes", "text"),
        ("bytes", 5),
        ("msgpack", object()),
        ("msgpack", 2**64),
        ("msgpack", "\ud800"),
        ("msgpack", _nested(5000)),
        ("json", b"bytes"),
        ("json", float("nan")),
        ("json", {(1, 2): 3}),
        ("json", "\ud800"),
        ("json", _nested(100_000)),
        ("arrow", {"a": 1}),
    ],
)
def test_a_record_that_does_not_fit_is_refused(encoding: str, record: object) -> None:
    with pytest.raises(RecordTypeError):
        encoder(encoding)([record])


def test_batches_of_one_append_share_a_schema() -> None:
    with pytest.raises(RecordTypeError, match="schema"):
        encoder("arrow")([TABLE, pa.record_batch({"b": [1]})])
    with pytest.raises(RecordTypeError, match="at least one"):
        encoder("arrow")([])


@pytest.mark.parametrize("encoding", ["bytes", "msgpack", "json", "arrow"])
@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"{}", b"\x01", b"[" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, msgpack.packb({"a": 1})],
)
def test_a_payload_of_another_encoding_is_reported(encoding: str, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=encoding):
        decoder(encoding)(payload)


# ---- what a writer may publish, every reader can read ----


def deep(levels: int, innermost: Any = 0) -> Any:
    """A value with so many lists and mappings within each other, in turn."""
    value = innermost
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("beside", [0, 300], ids=["alone", "among others"])
def test_a_record_that_is_nested_too_deep_is_named_with_the_limit(encoding: str, beside: int) -> None:
    flat = [{"a": [n], "b": 'a "[[[[{{{{ text'} for n in range(beside)]
    innermost: Any
    for innermost in (0, [], {}, "[" * 500, b"\x91" * 500 if encoding == "msgpack" else ""):
        levels = MAX_NESTING - isinstance(innermost, list | dict)
        right = [*flat, deep(levels, innermost), *flat]
        assert decoder(encoding)(encoder(encoding)(right)) == right
        for more in (1, 500, 5000):
            with pytest.raises(RecordTypeError, match=f"record {beside} has more than {MAX_NESTING} lists"):
                encoder(encoding)([*flat, deep(levels + more, innermost), *flat])


def test_arrow_has_a_limit_of_its_own_and_says_so() -> None:
    kind = pa.int64()
    for _ in range(70):
        kind = pa.list_(kind)
    with pytest.raises(RecordTypeError, match="recursion depth"):
        encoder("arrow")([pa.record_batch({"x": pa.nulls(1, kind)})])


@pytest.mark.parametrize("encoding", ["bytes", "msgpack"])
def test_more_records_than_a_reader_takes_are_refused(encoding: str) -> None:
    assert len(decoder(encoding)(encoder(encoding)([b""] * MAX_RECORDS))) == MAX_RECORDS
    with pytest.raises(PayloadTooLarge, match=f"{MAX_RECORDS + 1} records in one append; at most {MAX_RECORDS}"):
        encoder(encoding)([b""] * (MAX_RECORDS + 1))


def test_a_list_that_is_longer_than_a_reader_takes_is_refused() -> None:
    for right in ([0] * MAX_RECORDS, b"\xdd\x00\xff\xff\xff" * 300_000):
        assert decoder("msgpack")(encoder("msgpack")([right])) == [right]
    with pytest.raises(RecordTypeError, match="read again"):
        encoder("msgpack")([{"a": [0] * (MAX_RECORDS + 1)}])


def test_record_batches_that_a_reader_refuses_are_refused_before() -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    wrongs = [
        (pa.record_batch([pa.array([1]), pa.array([2])], ["a", "a"]), RecordTypeError, "two columns 'a'"),
        (pa.record_batch({"x": twice}), RecordTypeError, "column 'x' has the member 'a' more than once"),
        (pa.record_batch({"x": pa.nulls(10 * MAX_RECORDS)}), PayloadTooLarge, "of 10000000 rows; at most"),
        (pa.record_batch({"x": pa.array([b"\xff"]).cast(pa.string(), safe=False)}), RecordTypeError, "UTF8"),
    ]
    for batch, error, words in wrongs:
        with pytest.raises(error, match=words):
            encoder("arrow")([batch])


@pytest.mark.parametrize("beside", [0, 300], ids=["alone", "among others"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (msgpack.ExtType(5, b"x"), "a value of an extension type"),
        ([msgpack.ExtType(5, b"")], "a value of an extension type"),
        ({"a": [{"b": msgpack.Timestamp(1, 2)}]}, "a value of an extension type"),
        ({(): 1}, "a tuple as a key"),
        ({"a": [{"b": {(1, 2): 3}}]}, "a tuple as a key"),
        ({msgpack.ExtType(5, b"x"): 1}, "a ExtType as a key"),
    ],
)
def test_what_readers_of_msgpack_refuse_is_refused_before(wrong: Any, words: str, beside: int) -> None:
    flat = [{"a": n * 1.37, None: b"\xd4\x9f", 2.5: (1, [])} for n in range(beside)]
    assert decoder("msgpack")(encoder("msgpack")([*flat, 1])) == [
        *({**record, 2.5: [1, []]} for record in flat), 1
    ]  # fmt: skip
    with pytest.raises(RecordTypeError, match=f"record {beside} has {words}, which readers do not take"):
        encoder("msgpack")([*flat, wrong])


@pytest.mark.parametrize("extension", [b"\xc7\x00\x05", b"\xc7\x00\xff", b"\xd4\x05x", b"\xd6\xff\0\0\0\0"])
def test_a_reader_refuses_each_extension_type(extension: bytes) -> None:
    for payload in (b"\x91" + extension, b"\x91\x81" + extension + b"\x01"):
        with pytest.raises(RemoteProtocolError, match="msgpack"):
            decoder("msgpack")(payload)


class _Derived(dict[str, Any]):
    pass


_LEAVES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["[[{{" * 30, "\u0700" * 60]),
)
_LEAVES_OF_MSGPACK = st.one_of(
    _LEAVES,
    st.sampled_from([b"\x91" * 150, b"\xc7\xd4\xd8", b"\xdd\xdf", bytearray(b"\x81"), -1.4e100]),
    st.builds(msgpack.ExtType, st.integers(0, 3), st.sampled_from([b"", b"x", b"xyz"])),
    st.just(msgpack.Timestamp(1, 2)),
)


def _records(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.lists(inner, max_size=4)
        chains = st.builds(deep, st.sampled_from([1, 97, 98, 99, 100, 101, 500, 600]), inner)
        return (
            lists | lists.map(tuple) | st.dictionaries(keys, inner, max_size=3) | st.builds(_Derived, a=inner) | chains
        )

    return st.lists(st.recursive(leaves, around, max_leaves=8), max_size=5)


def _outcome(check: Any, records: list[Any]) -> str | None:
    try:
        check(records)
    except RecordTypeError as error:
        return str(error)
    return None


_KEYS = st.one_of(
    st.text(max_size=2), st.binary(max_size=2), st.integers(0, 300), st.just((1, 2)), st.just(msgpack.ExtType(1, b""))
)


@example([deep(MAX_NESTING, {})] * 300)
@example([{"a": 1.37}] * 300 + [{(): 1}])
@given(_records(_LEAVES_OF_MSGPACK, st.text(max_size=2) | st.integers(0, 300)) | _records(_LEAVES_OF_MSGPACK, _KEYS))
def test_the_quick_check_of_msgpack_refuses_what_the_slow_one_does(records: list[Any]) -> None:
    assert _outcome(encoder("msgpack"), records) == _outcome(_check_readable, records)


@example([{"a": 2**70}] * 300)
@example([deep(MAX_NESTING), 2**70, deep(MAX_NESTING + 1)])
@given(_records(_LEAVES | st.just(2**70), st.text(max_size=2) | st.integers(0, 300)))
def test_the_quick_check_of_json_refuses_what_the_slow_one_does(records: list[Any]) -> None:
    assert _outcome(encoder("json"), records) == _outcome(_check_readable, records)


_WITHOUT_C = f"""
import msgpack
from epochal.client.encoding.encodings import encoder
from epochal.errors import RecordTypeError
assert msgpack.Unpacker.__module__ == "msgpack.fallback"
flat = [{{"a": [0]}}] * 100
for encoding in ("msgpack", "json"):
    for levels, refused in (({MAX_NESTING}, False), ({MAX_NESTING + 1}, True)):
        value = 0
        for _ in range(levels):
            value = [value]
        try:
            encoder(encoding)([*flat, value])
        except RecordTypeError as error:
            assert refused and "record 100 has more" in str(error), error
        else:
            assert not refused
"""


def test_the_limit_is_the_same_with_msgpack_in_pure_python() -> None:
    pure = {**os.environ, "MSGPACK_PUREPYTHON": "1"}
    subprocess.run([sys.executable, "-c", _WITHOUT_C], check=True, timeout=PATIENCE, env=pure)
