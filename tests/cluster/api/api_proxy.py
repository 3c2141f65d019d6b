"""A proxy between the operator and the API server, that loses, delays and repeats what a test wants.

Apart from the tests because several use it. It speaks plain HTTP to the operator and brings its own credentials.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from epochal_operator.api import ThrottledApi

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive", "content-encoding"}
Before = Callable[[web.Request, bytes], Awaitable[web.Response | None]]
After = Callable[[web.Request, bytes], Awaitable[None]]


class ApiProxy:
    """What happens to each request; by default it goes through.

    `before` may answer in the API server's place; `after` is awaited before its answer goes back; `keep_event` says
    whether an event of a watch goes on.
    """

    def __init__(self) -> None:
        self.before: Before | None = None
        self.after: After | None = None
        self.keep_event: Callable[[dict[str, Any]], bool] = lambda event: True
        self.watches: list[str] = []
        """The path of every watch, as they began."""
        self._dead = 0
        self._open: dict[web.StreamResponse, asyncio.Task[Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.writes: list[str] = []
        """Method and path of every write but those of leases, in order."""
        self.url = ""

    def kill_watches(self) -> None:
        """Nothing comes any more through those that there are, and nothing ends them."""
        self._dead = len(self.watches)

    async def expire_watches(self) -> None:
        """Those that there are end, because they ask for what the API server no longer has."""
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
        for response, task in list(self._open.items()):
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            task.cancel()

    async def handle(self, request: web.Request, session: aiohttp.ClientSession, host: str) -> web.StreamResponse:
        """Pass one request on."""
        body = await request.read()
        self.requests.append((request.method, request.path))
        if request.method != "GET" and "/leases" not in request.path:
            self.writes.append(f"{request.method} {request.path}")
        if self.before is not None and (answer := await self.before(request, body)) is not None:
            return answer
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        async with session.request(
            request.method, host + request.raw_path, data=body or None, headers=headers
        ) as upstream:
            if "watch=true" in request.query_string:
                return await self._watch(request, upstream)
            content = await upstream.read()
            if self.after is not None:
                await self.after(request, body)
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_BY_HOP}
            return web.Response(status=upstream.status, body=content, headers=kept)

    async def _watch(self, request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches.append(request.path)
        number = len(self.watches)
        task = asyncio.current_task()
        assert task is not None
        self._open[response] = task
        try:
            async for line in upstream.content:
                if number > self._dead and line.strip() and self.keep_event(json.loads(line)):
                    await response.write(line)
        finally:
            del self._open[response]
        return response


@asynccontextmanager
async def api_proxy(api: ThrottledApi) -> AsyncIterator[ApiProxy]:
    """A proxy to the API server that `api` talks to."""
    access = api._access
    assert access is not None
    proxy = ApiProxy()
    connector = aiohttp.TCPConnector(ssl=access.tls, limit=0)
    async with aiohttp.ClientSession(
        connector=connector, read_bufsize=2**22, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True
    ) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            return await proxy.handle(request, session, access.server)

        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield proxy
        finally:
            await asyncio.shield(runner.cleanup())
