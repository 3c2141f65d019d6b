"""Faults of the real process: a database that another process has locked, and a watch over kill -9."""

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from tests.patience import PATIENCE

from epochal.client.catalog.catalog import CatalogClient
from epochal.local.child import console_script

Serve = Callable[..., Coroutine[Any, Any, tuple[Process, str]]]

LOCK = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def run() -> AsyncIterator[Callable[..., Coroutine[Any, Any, tuple[Process, str]]]]:
    """Starts a process; gives it and its first line."""
    started: list[Process] = []

    async def run(*command: str, **env: str) -> tuple[Process, str]:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env={**os.environ, **env})
        started.append(process)
        assert process.stdout is not None
        return process, (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().strip()

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
def serve(run: Any, tmp_path: Path) -> Serve:
    async def serve(port: str = "0", **env: str) -> tuple[Process, str]:
        command = [console_script("epochal-catalog"), "serve", "--data", str(tmp_path), "--port", port]
        process, line = await run(*command, **env)
        return process, line.removeprefix("ready ")

    return serve


@asynccontextmanager
async def locked(run: Any, file: Path) -> AsyncIterator[None]:
    """Another process holds the database's lock."""
    process, line = await run(sys.executable, "-c", LOCK, str(file))
    assert line == "locked"
    yield
    process.stdin.close()
    await process.wait()


async def get(url: str, path: str) -> tuple[int, Any]:
    async with ClientSession() as session, session.get(url + path) as response:
        return response.status, await response.json(content_type=None)


async def until_ready(url: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await get(url, "/readyz"))[0] != wanted:  # noqa: ASYNC110  # what load balancers do
            await asyncio.sleep(0.05)


async def test_a_lock_held_by_another_process_is_answered_and_shows_nowhere(
    run: Any, serve: Serve, tmp_path: Path, document: Any
) -> None:
    _, url = await serve(EPOCHAL_CATALOG_BUSY_TIMEOUT="0.2")
    async with ClientSession() as session, locked(run, tmp_path / "catalog.sqlite"):
        async with session.put(f"{url}/v1/streams/demo/s", json=document("demo/s")) as response:
            answer = await response.json(content_type=None)
            assert (response.status, answer["code"], answer["retryable"]) == (503, "store_unavailable", True)
            assert "Retry-After" in response.headers
        assert (await get(url, "/readyz"))[0] == 503
        status, listed = await get(url, "/v1/streams")
        assert (status, listed["items"], listed["revision"]) == (200, [], 0)
    await until_ready(url, 200)  # without a request that tries it
    async with CatalogClient(url) as catalog:
        assert (await catalog.apply(document("demo/s"), "demo", "s"))[1]
        async with aclosing(cast(Any, catalog.watch(since=0))) as events, asyncio.timeout(PATIENCE):
            seen = [await anext(events) for _ in range(2)]
        assert [(event.kind, event.name) for event in seen] == [("stream", "demo/s"), ("segment", "demo/s/0")]
        last = await catalog.revision()
        assert [event.revision for event in seen] == [last - 1, last], "what was refused left nothing"


@pytest.mark.long
async def test_a_short_lock_is_waited_for(run: Any, serve: Serve, tmp_path: Path, document: Any) -> None:
    _, url = await serve(EPOCHAL_CATALOG_BUSY_TIMEOUT="30")
    async with CatalogClient(url, patience=0.0, timeout=PATIENCE) as catalog:
        async with locked(run, tmp_path / "catalog.sqlite"):
            writing = asyncio.create_task(catalog.apply(document("demo/s"), "demo", "s"))
            await until_ready(url, 503)  # the lock is noticed long before the write gives up
            assert not writing.done()
        assert (await asyncio.wait_for(writing, PATIENCE))[1]
        await until_ready(url, 200)


@pytest.mark.rule("S26")
async def test_a_watch_goes_on_over_kill_9_without_a_hole(serve: Serve, document: Any) -> None:
    process, url = await serve()
    port = url.rpartition(":")[2]
    async with CatalogClient(url) as catalog, aclosing(cast(Any, catalog.watch(since=0))) as events:
        await catalog.apply(document("demo/a"), "demo", "a")
        assert (await asyncio.wait_for(anext(events), PATIENCE)).name == "demo/a"
        await catalog.apply(document("demo/b"), "demo", "b")  # stored, perhaps not yet read, when it dies
        process.send_signal(signal.SIGKILL)
        await process.wait()
        process, _ = await serve(port)
        await catalog.delete("demo", "a")
        async with asyncio.timeout(PATIENCE):
            found = [await anext(events) for _ in range(4)]
    assert [(event.kind, event.op, event.name) for event in found] == [
        ("segment", "put", "demo/a/0"),
        ("stream", "put", "demo/b"),
        ("segment", "put", "demo/b/0"),
        ("stream", "delete", "demo/a"),
    ]
    revisions = [event.revision for event in found]
    assert revisions == sorted(set(revisions))
    assert found[-1].object is None


@pytest.mark.rule("S30")
async def test_a_publisher_that_reports_while_the_database_is_locked_keeps_its_lease(
    start: Any, clock: Any, tmp_path: Path
) -> None:
    async with start(busy_timeout=0.05, lease_ttl=100.0) as client:
        granted = (await client.register("p", (await client.apply()).body["uid"])).body
        lease = client.server.catalog.state.leases.get(granted["token"])
        clock.now += 60.0
        stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
        stray.execute("BEGIN IMMEDIATE").close()
        report = {"incarnation": 1, "lower": [7], "counters": {"events": 3}}
        refused = await client.renew("p", granted["token"], s0=report)
        assert (refused.status, refused.code) == (503, "store_unavailable")
        assert lease.expires == clock.now + 100.0  # it is alive, whatever the disk can take
        [segment] = (await client("GET", "/v1/streams/demo/flights")).body["segments"]
        assert (segment["lower"], segment["counters"]) == (None, {"events": 3})
        stray.execute("ROLLBACK").close()
        stray.close()
