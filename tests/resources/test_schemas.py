"""Schemas of payloads: what is accepted, how what is not is told, and how two differ."""

import doctest
import importlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import ManifestError
from epochal.resources.schemas import (
    MAX_DEPTH,
    PLAIN,
    UNITS,
    Decimal,
    Field,
    ListOf,
    Plain,
    Schema,
    Struct,
    Timestamp,
    Type,
    differences,
    parse_type,
)

names = st.text(st.characters(exclude_characters="<>[](),:", codec="utf-8"), min_size=1, max_size=20)
member_names = names.filter(lambda name: name == name.strip())
leaves = (
    st.sampled_from(PLAIN).map(Plain)
    | st.builds(Timestamp, st.sampled_from(UNITS), st.sampled_from(["", "UTC", "Europe/Berlin", "+02:00"]))
    | st.builds(Decimal, st.integers(1, 38), st.integers(-38, 38))
)


def _struct(members: dict[str, Type]) -> Struct:
    return Struct(tuple(members.items()))


types: st.SearchStrategy[Type] = st.recursive(
    leaves,
    lambda inner: inner.map(ListOf) | st.dictionaries(member_names, inner, min_size=1, max_size=3).map(_struct),
    max_leaves=5,
)
schemas = st.lists(
    st.builds(Field, st.text(min_size=1, max_size=20), types, st.booleans()),
    min_size=1, max_size=5, unique_by=lambda field: field.name,
).map(lambda fields: Schema(tuple(fields)))  # fmt: skip


def problems(document: object) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        Schema.parse(document)
    return {problem.path: f"{problem.reason}; {problem.hint}" for problem in caught.value.problems}


def one(kind: object) -> dict[str, Any]:
    return {"fields": [{"name": "a", "type": kind}]}


@given(types)
def test_a_type_survives_its_text(kind: Type) -> None:
    assert parse_type(str(kind)) == kind


@given(schemas)
def test_a_schema_survives_json(schema: Schema) -> None:
    assert Schema.parse(json.loads(json.dumps(schema.to_document()))) == schema


@given(st.text("<>[](),: intlsrucmeap128_64dk+-", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        kind = parse_type(text)
    except ValueError:
        return
    assert parse_type(str(kind)) == kind


def test_spaces_do_not_matter() -> None:
    assert (
        str(parse_type(" struct< a :list < int8>,b : decimal128( 9,2 )> "))
        == "struct<a: list<int8>, b: decimal128(9, 2)>"
    )
    assert str(parse_type("timestamp[ us ,+02:00]")) == "timestamp[us, +02:00]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "too early"),
        ("int", "did you mean 'int8'"),
        ("list", "'<' is missing"),
        ("list<int8", "'>' is missing"),
        ("list<int8>>", "too much"),
        ("timestamp", "'[' is missing"),
        ("timestamp[min]", "one of s, ms, us, ns"),
        ("timestamp[s, ]", "zone is missing"),
        ("decimal128(39, 2)", "from 1 to 38"),
        ("decimal128(9)", "',' is missing"),
        ("struct<>", "cannot name a member"),
        ("struct<a: int8, a: int8>", "twice"),
        ("struct<a int8>", "':' is missing"),
        ("list<" * (MAX_DEPTH + 1) + "int8" + ">" * (MAX_DEPTH + 1), "deep"),
        ("list<" * 5000, "characters"),
        ("string ", None),
        (5, "must be a type"),
    ],
)  # fmt: skip
def test_a_type_that_is_none_is_reported(text: object, reason: str | None) -> None:
    if reason is None:
        Schema.parse(one(text))
    else:
        assert reason in problems(one(text))["payload.schema.fields[0].type"]


def test_every_wrong_field_is_reported_at_once() -> None:
    assert problems({"fields": [
        {"name": "", "type": "int8"},
        {"name": "a", "type": "int8", "nulable": True},
        {"name": "b"},
        {"name": "c", "type": "bool", "nullable": "yes"},
        "d",
        {"name": "e", "type": "bool"},
        {"name": "e", "type": "bool"},
    ], "field": 1}).keys() == {
        "payload.schema.field",
        "payload.schema.fields[0].name",
        "payload.schema.fields[1].nulable",
        "payload.schema.fields[2].type",
        "payload.schema.fields[3].nullable",
        "payload.schema.fields[4]",
        "payload.schema.fields[6].name",
    }  # fmt: skip
    others: list[object] = [None, [], "x"]
    for wrong in others:
        assert "must be a mapping" in problems(wrong)["payload.schema"]
    empty: list[object] = [{}, {"fields": []}, {"fields": {}}]
    for wrong in empty:
        assert "at least one" in problems(wrong)["payload.schema.fields"]
    assert "at most 2000" in problems({"fields": [{}] * 2001})["payload.schema.fields"]


def of(**fields: str) -> Schema:
    return Schema.parse({"fields": [{"name": name, "type": kind} for name, kind in fields.items()]})


@pytest.mark.rule("S28")
def test_differences_name_the_field() -> None:
    declared = of(dep_delay="int32", dest="string")
    assert differences(declared, None) == []
    assert differences(declared, of(dep_delay="int32", dest="string")) == []
    (problem,) = differences(declared, of(dep_delay="string", dest="string"))
    assert str(problem) == "payload.schema.fields.dep_delay.type: the stream has int32, not string"
    (problem,) = differences(None, declared)
    assert "declares none" in str(problem)
    assert {problem.path for problem in differences(declared, of(dep_dely="int32", dest="string"))} == {
        "payload.schema.fields.dep_dely",
        "payload.schema.fields.dep_delay",
    }
    (problem,) = differences(declared, of(dest="string", dep_delay="int32"))
    assert str(problem) == "payload.schema.fields: the stream has them in the order dep_delay, dest"
    required = Schema((Field("dep_delay", Plain("int32"), nullable=False), *declared.fields[1:]))
    (problem,) = differences(declared, required)
    assert str(problem) == "payload.schema.fields.dep_delay.nullable: the stream has true, not false"


@given(schemas, schemas)
def test_two_schemas_differ_exactly_when_they_are_not_equal(a: Schema, b: Schema) -> None:
    assert bool(differences(a, b)) == (a != b)


def test_the_examples_are_true() -> None:
    assert doctest.testmod(importlib.import_module("epochal.resources.schemas")).failed == 0
