"""An older copy of the catalog's database is put back under publishers, readers and their cursors."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import HistoryTruncated
from epochal.local import LocalMode, LocalSettings

QUICK = LocalSettings(poll_interval=0.05)
DOCUMENT: dict[str, Any] = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "s", "namespace": "test"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}


def copy(source: Path, target: Path) -> None:
    """What `sqlite3 SOURCE ".backup TARGET"` does."""
    with sqlite3.connect(source) as here, sqlite3.connect(target) as there:
        here.backup(there)
    here.close()
    there.close()


@pytest.mark.rule("E12")
async def test_a_cursor_of_the_lost_past_is_not_taken_for_one_of_the_new(tmp_path: Path) -> None:
    database, saved = tmp_path / "catalog" / "catalog.sqlite", tmp_path / "copy.sqlite"
    async with (
        LocalMode(tmp_path, port=0, settings=QUICK) as local,
        epochal.connect(local.url) as client,
        asyncio.timeout(PATIENCE),
    ):
        await client.catalog.apply(DOCUMENT, "test", "s")
        before = (await client.catalog.lookup("test", "s", wait=PATIENCE)).segments[0].incarnation
        copy(database, saved)
        os.kill(local.processes["shared-0"], signal.SIGKILL)
        while (await client.catalog.lookup("test", "s", wait=PATIENCE)).segments[0].incarnation == before:  # noqa: ASYNC110 - it is polled, not pushed
            await asyncio.sleep(0.05)
        async with client.subscribe("test/s") as sub, client.writer("test/s", writer_id="w") as writer:
            await sub.ready.wait()
            await writer.append(0, ["old"])
            await writer.advance(1)
            assert (await anext(sub.epochs())).time == 0
            cursor = sub.cursor()
            await writer.close()
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (database.parent / name).unlink(missing_ok=True)
    saved.rename(database)
    async with (
        LocalMode(tmp_path, port=0, settings=QUICK) as local,
        epochal.connect(local.url) as client,
        asyncio.timeout(PATIENCE),
        client.writer("test/s", writer_id="w") as writer,
    ):
        await writer.append(1, ["half of it, which the cursor would skip"])
        await writer.append(1, ["and more"])
        await writer.append(1, ["and the end"])
        await writer.advance(2)
        with pytest.raises(HistoryTruncated):  # else half of 1 would be given as whole
            async with client.subscribe("test/s", since=cursor) as sub:
                await anext(sub.epochs())
