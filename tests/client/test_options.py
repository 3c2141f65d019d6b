"""What a caller takes a stream to be, in every form, against what real streams declare."""

from typing import Any

import pyarrow as pa
import pytest

import epochal
from epochal.client.options import read_schema
from epochal.errors import ConfigError, SchemaMismatch
from epochal.resources.schemas import Schema

DECLARED = {"fields": [{"name": "delay", "type": "int32"}, {"name": "dest", "type": "string"}]}
OTHER = {"fields": [{"name": "delay", "type": "string"}, {"name": "dest", "type": "string"}]}


def forms(document: dict[str, Any], delay: pa.DataType) -> list[Any]:
    """The same schema as a mapping, a `Schema` and a `pyarrow.Schema`."""
    return [document, Schema.parse(document), pa.schema([("delay", delay), ("dest", pa.string())])]


def test_every_form_is_read_as_the_same_schema() -> None:
    assert read_schema(None) is None
    assert [read_schema(form) for form in forms(DECLARED, pa.int32())] == [Schema.parse(DECLARED)] * 3


@pytest.mark.parametrize("wrong", [5, {}, {"fields": [{"name": "a", "type": "int33"}]}, pa.schema([("a", pa.null())])])
async def test_what_is_no_schema_is_refused_where_it_is_given(wrong: Any) -> None:
    async with epochal.connect("http://127.0.0.1:1") as client:
        for opening in (client.writer, client.subscribe):
            with pytest.raises(ConfigError) as caught:
                opening("test/any", schema=wrong)
            assert caught.value.problems


@pytest.mark.rule("S28")
async def test_another_schema_or_encoding_is_refused_before_connecting(services) -> None:
    await services.declare("schema", {"time": {"shape": "int"}, "payload": {"encoding": "arrow", "schema": DECLARED}})
    stream = "test/schema"
    async with epochal.connect(services.url) as client:
        for opening in (client.writer, client.subscribe):
            for right in forms(DECLARED, pa.int32()):
                async with opening(stream, schema=right, encoding="arrow"):
                    pass
            for wrong in forms(OTHER, pa.string()):
                with pytest.raises(SchemaMismatch) as caught:
                    await opening(stream, schema=wrong).__aenter__()
                (problem,) = caught.value.problems
                assert problem.path.startswith("payload.schema"), problem
            with pytest.raises(SchemaMismatch) as caught:
                await opening(stream, encoding="json").__aenter__()
            assert [problem.path for problem in caught.value.problems] == ["payload.encoding"]


@pytest.mark.rule("S28")
async def test_a_schema_is_not_found_where_none_is_declared(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        with pytest.raises(SchemaMismatch) as caught:
            await client.subscribe(stream, schema=DECLARED).__aenter__()
        assert [problem.path for problem in caught.value.problems] == ["payload.schema"]
