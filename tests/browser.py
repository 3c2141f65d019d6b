"""A site that Chromium looks at: pages that a test makes up, and what they say in the end.

What the browser itself would forbid pages of other sites is switched off, so that our services stand alone.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

HOST = "page.example"
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
_OFF = "LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights,HttpsUpgrades"
_TYPES = {".html": "text/html", ".js": "text/javascript"}

Other = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """Serves `pages` by path; `other` answers the rest. `found`: what a page has sent to /found, as JSON."""

    def __init__(self, pages: Mapping[str, str], other: Other | None = None) -> None:
        self.found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.origin = ""
        self._pages = dict(pages)
        self._other = other

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in self._pages:
            return web.Response(text=self._pages[request.path], content_type=_TYPES[Path(request.path).suffix])
        if request.path == "/found":
            self.found.set_result(await request.json())
            return web.Response()
        return web.Response(status=404) if self._other is None else await self._other(request)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The site's origin, as a browser knows it, while it is served."""
        runner = web.AppRunner(web.Application())
        runner.app.router.add_route("*", "/{path:.*}", self._handle)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.origin = f"http://{HOST}:{runner.addresses[0][1]}"
        try:
            yield self.origin
        finally:
            await runner.cleanup()

    @asynccontextmanager
    async def visited(self, page: str, profile: Path) -> AsyncIterator[None]:
        """Chromium looks at a page while this is entered."""
        assert CHROMIUM is not None
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--disable-dev-shm-usage",
            "--no-first-run", f"--user-data-dir={profile}", f"--disable-features={_OFF}",
            f"--host-resolver-rules=MAP {HOST} 127.0.0.1", self.origin + page,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            browser.terminate()
            await browser.wait()
