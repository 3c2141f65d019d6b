"""Records to payloads and back, for each encoding."""

from typing import Any

import msgpack
import pyarrow as pa
import pytest

from epochal.client.encoding.encodings import decoder, encoder
from epochal.errors import RecordTypeError, RemoteProtocolError

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
def test_a_payload_of_another_encoding_is_told(encoding: str, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=encoding):
        decoder(encoding)(payload)
