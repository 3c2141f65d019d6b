"""What is made from the declaration of a kind: its table, and the conditions on which a row is replaced."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from sqlalchemy import MetaData
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from epochal_catalog.api import openapi
from epochal_catalog.domain.kind import Column, Fence, Json, Record, Rows
from epochal_catalog.domain.kinds import NOUNS
from epochal_catalog.storage import schema


@dataclass(frozen=True, slots=True)
class MarkRecord(Record):
    uid: str
    number: int
    place: int
    sealed: bool
    times: list[Json] | None
    names: tuple[str, ...]
    note: str | None


def test_the_columns_of_a_table_follow_from_the_fields_of_its_record() -> None:
    columns = {"place": Column(digits=True), "sealed": Column(unique=True)}
    rows = Rows(MarkRecord, "marks", key=("uid", "number"), of_stream=True, columns=columns)
    metadata = MetaData()
    schema.TABLES[schema.ROWS[0].record].to_metadata(metadata)
    statement = str(CreateTable(schema.table_of(rows, metadata)).compile(dialect=sqlite.dialect()))
    assert [line.strip().rstrip(",") for line in statement.splitlines() if line.strip()] == [
        "CREATE TABLE marks (",
        "uid TEXT NOT NULL",
        "number BIGINT NOT NULL",
        "place TEXT NOT NULL",
        "sealed BOOLEAN NOT NULL",
        "times JSON",
        "names JSON NOT NULL",
        "note TEXT",
        "PRIMARY KEY (uid, number)",
        "FOREIGN KEY(uid) REFERENCES streams (uid) ON DELETE CASCADE",
        "UNIQUE (sealed)",
        ")",
    ]


@pytest.mark.parametrize(("strict", "allowed"), [(True, [False, False, True]), (False, [False, True, True])])
def test_a_fence_lets_its_column_rise_or_stay(strict: bool, allowed: list[bool]) -> None:
    fence, old = Fence("number", strict=strict), SimpleNamespace(number=5)
    assert [fence.condition(SimpleNamespace(number=number), old) for number in (4, 5, 6)] == allowed


def test_every_noun_has_its_table_its_kind_of_event_and_its_operations() -> None:
    shown = openapi.document(300.0)
    events = shown["paths"]["/v1/watch"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    for noun in NOUNS:
        assert schema.TABLES[noun.kind.rows.record].name == noun.kind.rows.table
        assert noun.kind.name in events["properties"]["event"]["enum"]
        for route in noun.routes:
            described = shown["paths"][route.operation.path][route.operation.method.lower()]
            assert described["operationId"] == route.operation.name
