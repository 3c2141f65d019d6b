"""A collector that takes what it is sent and keeps nothing."""

import asyncio

from aiohttp import web

from roles.common import say


async def serve() -> None:
    """Answer every export on a port of its own, which is told, until it is killed."""

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/{kind}", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    say(port=runner.addresses[0][1])
    await asyncio.Event().wait()
