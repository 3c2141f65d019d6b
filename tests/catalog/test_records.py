"""Streams that are stored."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from epochal_catalog.errors import StoredStreamError


def edit(data: Path, sql: str, *values: str) -> None:
    with sqlite3.connect(data / "catalog.sqlite") as connection:
        connection.execute(sql, values)
    connection.close()


async def test_a_stream_that_cannot_be_read_is_named(start: Any, tmp_path: Path) -> None:
    async with start() as client:
        await client.apply()
    edit(tmp_path, "UPDATE streams SET manifest = json_set(manifest, '$.spec.segments', 'many')")
    with pytest.raises(StoredStreamError, match=r"(?s)demo/flights cannot be read .*segments"):
        async with start():
            pass
