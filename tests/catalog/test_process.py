"""The real process: what it prints, how it ends, and what is left after kill -9."""

import asyncio
import os
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from tests.patience import PATIENCE

from epochal.local.child import console_script

Spawn = Callable[..., Coroutine[Any, Any, tuple[Process, str]]]


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Spawn]:
    """Starts `epochal-catalog serve`; gives the process and its url, empty when it did not get ready."""
    started: list[Process] = []

    async def run(*options: str, **env: str) -> tuple[Process, str]:
        command = [console_script("epochal-catalog"), "serve", "--data", str(tmp_path / "data"), *options]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}
        )
        started.append(process)
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().split()
        return process, line[1] if line[:1] == ["ready"] else ""

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def call(url: str, method: str, path: str, json: Any = None) -> tuple[int, Any]:
    async with ClientSession() as session, session.request(method, url + path, json=json) as response:
        return response.status, await response.json(content_type=None) if response.status != 204 else None


async def _register(url: str, uid: str, publisher: str) -> Any:
    addresses = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"}
    body = {"publisher": publisher, "instance": "i", "stream": "demo/s", "uid": uid, "segments": ["0"]}
    return (await call(url, "POST", "/v1/publishers", {**body, "addresses": addresses}))[1]


@pytest.mark.rule("S26", "E6", "E7", "E11", "E12")
async def test_kill_9_loses_nothing_that_was_acknowledged(spawn: Spawn, document: Any) -> None:
    process, url = await spawn("--port", "0")
    old = (await call(url, "PUT", "/v1/streams/demo/old", document("demo/old")))[1]
    await call(url, "DELETE", "/v1/streams/demo/old")
    stream = (await call(url, "PUT", "/v1/streams/demo/s", document("demo/s", segments=2)))[1]
    sessions = "/v1/streams/demo/s/writers/w%2F1/sessions"
    numbers = [(await call(url, "POST", sessions))[1]["session"] for _ in range(2)]
    granted = await _register(url, stream["uid"], "p")
    incarnation = granted["segments"][0]["incarnation"]
    report = {"0": {"incarnation": incarnation, "lower": [7], "writers": ["w/1"], "number": 0, "horizon": [9]}}
    await call(url, "PUT", "/v1/publishers/p", {"token": granted["token"], "segments": report})
    mark = {"publisher": "p", "token": granted["token"], "incarnation": incarnation, "number": 5, "finishing": True}
    await call(url, "PUT", "/v1/streams/demo/s/segments/0/finishing", mark)
    revision = (await call(url, "GET", "/v1/streams"))[1]["revision"]
    process.send_signal(signal.SIGKILL)
    await process.wait()

    process, url = await spawn("--port", "0")
    listed = (await call(url, "GET", "/v1/streams"))[1]
    assert listed["revision"] == revision
    [found] = listed["items"]
    moving: dict[str, Any] = {"segments": [], "held_back": []}
    assert {**found, **moving} == {**stream, **moving, "writers": ["w/1"]}
    segment = found["segments"][0]
    assert (segment["lower"], segment["finishing"], segment["incarnation"]) == ([7], True, incarnation)
    assert segment["publisher"]["verified"] is False  # its lease has one TTL of grace
    numbers.append((await call(url, "POST", sessions))[1]["session"])
    assert numbers == sorted(set(numbers))
    stale = (await call(url, "PUT", "/v1/streams/demo/s/segments/0/finishing", {**mark, "finishing": False}))[1]
    assert stale == {"complete": False}
    assert (await call(url, "GET", "/v1/streams/demo/s"))[1]["segments"][0]["finishing"] is True  # 5 was stored
    assert (await call(url, "PUT", "/v1/publishers/p", {"token": granted["token"]}))[0] == 200
    assert (await call(url, "GET", "/v1/streams/demo/s"))[1]["segments"][0]["publisher"]["verified"] is True
    taken = await _register(url, stream["uid"], "q")
    assert taken["token"] > granted["token"]
    assert taken["segments"][0]["incarnation"] > incarnation
    assert (taken["segments"][0]["lower"], taken["segments"][0]["horizon"]) == ([7], [9])
    assert taken["sessions"] == {"w/1": numbers[-1]}
    assert (await call(url, "PUT", "/v1/streams/demo/old", document("demo/old")))[1]["uid"] != old["uid"]


async def test_sigterm_answers_waiting_lookups_and_exits_with_0(spawn: Spawn) -> None:
    process, url = await spawn("--port", "0")
    async with ClientSession() as session:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_status(session, url + "/v1/streams/demo/s/segments?wait=60"))
            metrics = ""
            while "epochal_catalog_waiters" not in metrics or " 1.0" not in metrics.split("catalog_waiters{")[-1][:120]:
                async with session.get(url + "/metrics") as response:
                    metrics = await response.text()
            process.terminate()
        assert waiting.result() == (503, "1", "shutting_down")
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def _status(session: ClientSession, url: str) -> tuple[int, str | None, str]:
    async with session.get(url) as response:
        return response.status, response.headers.get("Retry-After"), (await response.json(content_type=None))["code"]


async def test_it_exits_cleanly_when_standard_input_ends(spawn: Spawn) -> None:
    process, url = await spawn("--port", "0", "--exit-with-stdin")
    assert url.startswith("http://127.0.0.1:")
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_a_second_process_on_one_directory_is_refused_and_names_the_first(spawn: Spawn) -> None:
    first, _ = await spawn("--port", "0")
    second, url = await spawn("--port", "0")
    _, errors = await second.communicate()
    assert (url, second.returncode) == ("", 1)
    assert f"in use by process {first.pid}" in errors.decode()
    first.kill()
    await first.wait()
    _, url = await spawn("--port", "0")  # the lock went with the process
    assert url


async def test_a_taken_port_is_reported(spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process, url = await spawn("--port", str(port), EPOCHAL_CATALOG_PORT_RETRIES="1")
        _, errors = await process.communicate()
    assert (url, process.returncode) == ("", 1)
    assert f"port {port} on 127.0.0.1 is taken" in errors.decode()


async def test_a_port_that_becomes_free_is_taken_after_all(spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        starting = asyncio.create_task(spawn("--port", str(taken.getsockname()[1])))
        await asyncio.sleep(0.2)
    assert (await starting)[1]


async def test_all_wrong_settings_are_reported_at_once(spawn: Spawn) -> None:
    process, _ = await spawn("--port", "99999", EPOCHAL_CATALOG_LEASE_TTL="soon")
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert "port:" in errors.decode()
    assert "lease_ttl:" in errors.decode()
