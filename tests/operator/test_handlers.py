"""The watches: what Kopf repeats, what ends it, and what does not end with it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from tests.patience import PATIENCE

from epochal.kube.access import Access
from epochal_operator import handlers
from epochal_operator.controller import Controller
from epochal_operator.settings import OperatorSettings

SETTINGS = OperatorSettings(catalog="http://c:1", image="i", retry_first=0.01, retry_last=0.01)


def _kind(name: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    verbs = ["list", "patch", "watch"]
    return {"name": name, "kind": kind, "singularName": kind.lower(), "namespaced": namespaced, "verbs": verbs}


_VERSION = {"version": "v1alpha1"}
KNOWN: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [_kind("namespaces", "Namespace", namespaced=False)]},
    "/apis": {"groups": [{"name": "epochal.dev", "versions": [_VERSION], "preferredVersion": _VERSION}]},
    "/apis/epochal.dev/v1alpha1": {"resources": [_kind("streams", "Stream", namespaced=True)]},
}
"""What can be watched: streams."""


class Server:
    """An API server that knows of streams alone. They get `status`; with 0 a list, and a watch without events."""

    def __init__(self) -> None:
        self.status = 403
        self.requested = asyncio.Semaphore(0)
        self.watched = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/streams"):
            return web.json_response(KNOWN.get(request.path, {"resources": []}))
        self.requested.release()
        if self.status:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if "watch" not in request.query:
            return web.json_response({"kind": "StreamList", "metadata": {"resourceVersion": "1"}, "items": []})
        self.watched.set()
        await asyncio.Event().wait()
        raise AssertionError


class Reached:
    """Access to it, without credentials."""

    server_name = None

    def __init__(self, server: str) -> None:
        self.server = server
        self.sessions: list[aiohttp.ClientSession] = []

    def session(self, connections: int, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        self.sessions.append(aiohttp.ClientSession(middlewares=middlewares))
        return self.sessions[-1]

    async def headers(self) -> dict[str, str]:
        return {}


class Listed:
    """A controller that has listed everything."""

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        self.listed.set()


@pytest.fixture(autouse=True)
def _streams_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_ALL_OPEN", 10 * PATIENCE)


@asynccontextmanager
async def watching(server: Server, stop: asyncio.Event) -> AsyncIterator["asyncio.Task[None]"]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    reached = Reached(f"http://127.0.0.1:{runner.addresses[0][1]}")
    watches = handlers.Watches(SETTINGS, cast(Controller, Listed()), cast(Access, reached))
    task = asyncio.create_task(watches.watch(stop))
    try:
        async with asyncio.timeout(PATIENCE):
            await server.requested.acquire()
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await watches.end()
        assert [session.closed for session in reached.sessions] == [True]
        await runner.cleanup()
        asyncio.get_running_loop().set_exception_handler(None)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def of_kopf() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "/kopf/" in cast(Any, task.get_coro()).cr_code.co_filename]


@pytest.mark.parametrize(("status", "times"), [(403, 9), (503, 2)])  # the latter has pauses of seconds
async def test_what_cannot_be_watched_is_tried_again_without_an_end_and_logged_once(
    status: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.status = status
    caplog.set_level("INFO", "epochal.operator")
    async with watching(server, asyncio.Event()) as task, asyncio.timeout(PATIENCE):
        for _ in range(times):
            await server.requested.acquire()
        assert not task.done()
        server.status = 0
        await server.watched.wait()
        assert not task.done()
    said = [message for message in caplog.messages if "watched" in message]
    assert len(said) == 2
    assert said[0].startswith(f"streams cannot be watched: {status} ")
    assert said[1] == "streams can be watched again"


async def test_another_reason_why_nothing_can_be_watched_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    async with watching(server, asyncio.Event()), asyncio.timeout(PATIENCE):
        await server.requested.acquire()
        server.status = 503
        for _ in range(2):
            await server.requested.acquire()
        server.status = 0
        await server.watched.wait()
    said = [message.partition(":")[2].split()[0] for message in caplog.messages if "cannot be watched" in message]
    assert said == ["403", "503"]


async def test_when_kopf_ends_the_watches_end_with_the_reason_and_all_other_tasks_go_on() -> None:
    server, ours = Server(), asyncio.create_task(asyncio.Event().wait())
    server.status = 404
    async with watching(server, asyncio.Event()) as task, asyncio.timeout(PATIENCE):
        with pytest.raises(
            handlers.WatchEnded, match="streams cannot be watched: 404 Not Found; the cluster's definition"
        ):
            await task
        assert not ours.done()
    assert not of_kopf()
    assert not ours.done()
    ours.cancel()


async def test_a_kind_that_is_not_known_yet_is_not_left_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_ALL_OPEN", 0.01)
    server = Server()
    server.status = 0
    async with watching(server, asyncio.Event()) as task, asyncio.timeout(PATIENCE):
        with pytest.raises(handlers.WatchEnded, match=r"did not know of relays, serviceaccounts, .* yet"):
            await task


async def test_a_signal_stops_the_operator_and_not_kopf() -> None:
    server, stop = Server(), asyncio.Event()
    server.status = 0
    async with watching(server, stop) as task:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await stop.wait()
        assert not task.done()
        assert of_kopf()
    assert not of_kopf()


async def test_watches_that_never_began_end_nothing() -> None:
    watches = handlers.Watches(SETTINGS, cast(Controller, Listed()), cast(Access, Reached("")))
    ours = asyncio.create_task(asyncio.Event().wait())
    await watches.end()
    assert not ours.done()
    ours.cancel()
