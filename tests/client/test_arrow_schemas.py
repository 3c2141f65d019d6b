"""Declared schemas and Arrow: there and back, batches that are not of it, and a machine without pyarrow."""

import sys
from typing import Any

import pyarrow as pa
import pytest

import epochal
from epochal.client.encoding.arrow_schemas import from_arrow, is_arrow, to_arrow
from epochal.client.encoding.encodings import decoder, encoder
from epochal.errors import ConfigError, RecordTypeError
from epochal.resources.schemas import PLAIN, Schema

FIELDS = [
    {"name": "dep_delay", "type": "int32", "nullable": True},
    {"name": "dest", "type": "string", "nullable": False},
]
KINDS = (
    *PLAIN,
    "timestamp[s]",
    "timestamp[us, UTC]",
    "decimal128(10, 2)",
    "list<int8>",
    "struct<a: list<string>, b: struct<c: date32>>",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_survives_arrow(kind: str) -> None:
    schema = Schema.parse({"fields": [{"name": "a", "type": kind}, {"name": "b", "type": kind, "nullable": False}]})
    assert is_arrow(to_arrow(schema))
    assert from_arrow(to_arrow(schema)) == schema


def test_a_type_that_no_stream_can_declare_is_named() -> None:
    unknown = [("a", pa.large_string()), ("b", pa.int8()), ("c", pa.float16()), ("d", pa.struct([("x:y", pa.int8())]))]
    with pytest.raises(ConfigError) as caught:
        from_arrow(pa.schema(unknown))
    assert [problem.path for problem in caught.value.problems] == [f"payload.schema.fields.{n}.type" for n in "acd"]


def test_a_batch_of_another_schema_is_refused_by_the_name_of_the_field() -> None:
    encode = encoder("arrow", Schema.parse({"fields": FIELDS}))
    right = pa.schema([pa.field("dep_delay", pa.int32()), pa.field("dest", pa.string(), nullable=False)])
    batch = pa.record_batch([[1, None], ["JFK", "EWR"]], schema=right)
    assert decoder("arrow")(encode([batch])) == [batch]
    wrongs: list[tuple[Any, str]] = [
        (right.set(0, pa.field("dep_delay", pa.int64())), r"fields\.dep_delay\.type: the stream has int32, not int64"),
        (right.set(0, pa.field("dep_delay", pa.float16())), r"fields\.dep_delay\.type"),
        (right.set(1, pa.field("dest", pa.string())), r"fields\.dest\.nullable"),
        (right.append(pa.field("tail", pa.string())), r"fields\.tail"),
        (right.remove(1), r"fields\.dest"),
    ]
    for schema, reason in wrongs:
        with pytest.raises(RecordTypeError, match=reason):
            encode([pa.RecordBatch.from_pylist([], schema=schema)])
    with_more_said = right.with_metadata({"made": "by spark"})
    assert encode([pa.RecordBatch.from_pylist([], schema=with_more_said)])


@pytest.mark.parametrize("make", [encoder, decoder])
def test_without_pyarrow_the_error_says_what_to_install(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        make("arrow")
    assert make("json")


async def test_arrow_from_a_writer_to_a_subscriber(services) -> None:
    name = "arrow-declared"
    payload = {"encoding": "arrow", "schema": {"fields": FIELDS}}
    await services.declare(name, {"time": {"shape": "int"}, "payload": payload})
    right = to_arrow(Schema.parse({"fields": FIELDS}))
    batch = pa.record_batch([[1, None], ["JFK", "EWR"]], schema=right)
    async with epochal.connect(services.url) as client, client.writer(f"test/{name}") as writer:
        with pytest.raises(RecordTypeError, match="dep_delay"):
            await writer.append(0, [pa.record_batch({"dep_delay": ["x"], "dest": ["JFK"]})])
        await writer.append(0, [batch, batch])
        await writer.finish()
        async with client.subscribe(f"test/{name}", since="start") as sub:
            (epoch,) = [epoch async for epoch in sub.epochs()]
            assert isinstance(epoch, epochal.Epoch)
            assert list(epoch.records()) == [batch, batch]
