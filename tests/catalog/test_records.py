"""Streams that an earlier release stored."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from epochal_catalog.errors import StoredStreamError


def edit(data: Path, sql: str, *values: str) -> None:
    with sqlite3.connect(data / "catalog.sqlite") as connection:
        connection.execute(sql, values)
    connection.close()


async def test_a_schema_of_an_old_form_is_reported_and_keeps_nothing_from_starting(start: Any, tmp_path: Path) -> None:
    async with start() as client:
        stream = (await client.apply()).body
    for schema in ('{"type": "record", "fields": [{"name": "a", "type": "long"}]}', '{"$ref": "a.json"}'):
        edit(tmp_path, "UPDATE streams SET manifest = json_set(manifest, '$.spec.payload.schema', json(?))", schema)
        async with start() as client:
            found = (await client("GET", "/v1/streams/demo/flights")).body
            assert found["manifest"] == stream["manifest"]
            [told] = found["not_in_effect"]
            assert (told["path"], "no longer read" in told["note"]) == ("spec.payload.schema", True)
            await client.register("p", stream["uid"])
            assert (await client.lookup(encoding="msgpack")).status == 200
    async with start() as client:
        again = (await client.apply(progress={"minWriters": 2})).body  # stores what is in effect
        assert (again["uid"], again["not_in_effect"]) == (stream["uid"], [])
    async with start() as client:
        assert (await client("GET", "/v1/streams/demo/flights")).body["not_in_effect"] == []


async def test_what_pods_were_to_get_could_be_anything_once(start: Any, tmp_path: Path) -> None:
    old = {"resources": '{"cpu": 2}', "tolerations": '[{"when": "always"}]'}
    async with start() as client:
        stream = (await client.apply(publishers={"segmentsPerPod": 1})).body
    for name, value in old.items():
        edit(tmp_path, f"UPDATE streams SET manifest = json_set(manifest, '$.spec.publishers.{name}', json(?))", value)
    async with start() as client:
        found = (await client("GET", "/v1/streams/demo/flights")).body
        assert found["manifest"] == stream["manifest"]
        assert [told["path"] for told in found["not_in_effect"]] == [f"spec.publishers.{name}" for name in sorted(old)]


async def test_one_segment_a_publisher_which_was_once_the_default_stays_until_the_stream_is_applied(
    start: Any, tmp_path: Path
) -> None:
    async with start() as client:
        assert "publishers" not in (await client.apply(segments=3)).body["manifest"]["spec"]
    stored = "json_set(manifest, '$.spec.publishers', json(?))"
    edit(tmp_path, f"UPDATE streams SET manifest = {stored}", '{"segmentsPerPod": 1}')
    for _ in range(2):
        async with start() as client:
            found = (await client("GET", "/v1/streams/demo/flights")).body
            assert (found["manifest"]["spec"]["publishers"], found["generation"]) == ({"segmentsPerPod": 1}, 1)
    async with start() as client:
        again = (await client.apply(segments=3, publishers={"segmentsPerPod": 1})).body
        assert again["generation"] == 1
        again = (await client.apply(segments=3)).body
        assert ("publishers" in again["manifest"]["spec"], again["generation"]) == (False, 2)


async def test_a_stream_that_cannot_be_read_is_named(start: Any, tmp_path: Path) -> None:
    async with start() as client:
        await client.apply()
    edit(tmp_path, "UPDATE streams SET manifest = json_set(manifest, '$.spec.segments', 'many')")
    with pytest.raises(StoredStreamError, match=r"(?s)demo/flights cannot be read .*segments"):
        async with start():
            pass
