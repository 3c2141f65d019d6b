"""Kopf in the operator's own loop: what it must not take with it, and what is taken back from it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
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
    """An API server that knows of streams alone; `answer` is what it gives to who watches them."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 403
        self.asked = asyncio.Semaphore(0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/streams"):
            self.asked.release()
            if self.status == 0:
                await asyncio.Event().wait()
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        return web.json_response(KNOWN.get(request.path, {"resources": []}))


class Reached:
    """Access to it, without credentials."""

    server_name = None

    def __init__(self, server: str) -> None:
        self.server = server

    def session(self, connections: int, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(middlewares=middlewares)

    async def headers(self) -> dict[str, str]:
        return {}


class Lists:
    """A controller that lists nothing."""

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        self.listed.set()
        self.rounds = 0

    async def list_again(self) -> None:
        self.rounds += 1


@asynccontextmanager
async def watching(server: Server, lists: Lists, stop: asyncio.Event) -> AsyncIterator["asyncio.Task[None]"]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    access = cast(Access, Reached(f"http://127.0.0.1:{runner.addresses[0][1]}"))
    task = asyncio.create_task(handlers.watch(SETTINGS, cast(Controller, lists), access, stop))
    try:
        async with asyncio.timeout(PATIENCE):
            await server.asked.acquire()
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await runner.cleanup()
        asyncio.get_running_loop().set_task_factory(None)
        asyncio.get_running_loop().set_exception_handler(None)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def of_kopf() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "/kopf/" in cast(Any, task.get_coro()).cr_code.co_filename]


async def test_tasks_that_began_after_kopf_go_on_when_it_ends_and_none_of_its_own_do() -> None:
    server, lists = Server(), Lists()
    async with watching(server, lists, asyncio.Event()) as task:
        ours = asyncio.create_task(asyncio.Event().wait())
        async with asyncio.timeout(PATIENCE):
            while not lists.rounds:  # it is refused, and ends; everything is listed, and it begins again
                await server.asked.acquire()
            await server.asked.acquire()
        assert not ours.done()
        assert not task.done()
        assert of_kopf()
        ours.cancel()
    assert not of_kopf()


async def test_a_signal_stops_the_operator_and_not_kopf() -> None:
    server, stop = Server(), asyncio.Event()
    server.status = 0
    async with watching(server, Lists(), stop) as task:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await stop.wait()
        assert not task.done()
