"""The other end of a forwarded port: a server that speaks the channels as a kubelet does.

It stands in for the one part of Kubernetes that needs containers: behind a real API server it is a node's kubelet, and
`tests/cluster/node_tests` shows the same with a real one. A pod's port leads to a port of this machine.
"""

import asyncio
import contextlib
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import WSMsgType, web

PROTOCOL = "v4.channel.k8s.io"

Find = Callable[[str, str, int], int | None]
"""The port of this machine for (namespace, pod, port); None where nobody listens."""


class Kubelet:
    """Listens on a free port of loopback while `running`."""

    def __init__(self, find: Find = lambda _namespace, _pod, port: port) -> None:
        self.find = find
        self.port = 0
        self.connections: list[tuple[str, str, int]] = []
        """What was connected to, in order."""
        self.idle = asyncio.Event()
        """Set while nothing is connected."""
        self._open: set[web.WebSocketResponse] = set()

    @contextlib.asynccontextmanager
    async def running(self, keys: tuple[Path, Path] | None = None, port: int = 0) -> AsyncIterator["Kubelet"]:
        """With TLS if `keys` (certificate, key) are given."""
        app = web.Application()
        for path in ("/portForward/{namespace}/{pod}", "/api/v1/namespaces/{namespace}/pods/{pod}/portforward"):
            app.router.add_get(path, self._forward)
        tls = None
        if keys is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(*keys)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await self.cut()
            await runner.cleanup()

    async def cut(self) -> None:
        """End all connections, as a pod that is killed does."""
        for socket in list(self._open):
            await socket.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        port = int(request.query.get("port") or request.query["ports"])
        if PROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
            raise web.HTTPBadRequest(text="speaks another protocol")
        self.connections.append((namespace, pod, port))
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        self._open.add(socket)
        self.idle.clear()
        try:
            for channel in (b"\x00", b"\x01"):
                await socket.send_bytes(channel + struct.pack("<H", port))
            there = self.find(namespace, pod, port)
            try:
                if there is None:
                    raise ConnectionRefusedError("connection refused")
                reader, writer = await asyncio.open_connection("127.0.0.1", there)
            except OSError as error:
                await socket.send_bytes(b"\x01" + f"error forwarding port {port} to pod {pod}: {error}".encode())
                return socket
            down = asyncio.create_task(_copy(reader, socket))
            try:
                async for message in socket:
                    if message.type is WSMsgType.BINARY and message.data[0] == 0:
                        writer.write(message.data[1:])
                        await writer.drain()
            except ConnectionError:
                pass
            finally:
                down.cancel()
                writer.close()
        finally:
            self._open.discard(socket)
            if not self._open:
                self.idle.set()
            await socket.close()
        return socket


async def _copy(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(32 * 1024):
            await socket.send_bytes(b"\x00" + data)
        await socket.close()


async def _main(port: int, certificate: Path, key: Path) -> None:
    kubelet = Kubelet()
    async with kubelet.running((certificate, key), port):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":  # a node's kubelet for tests with an API server of their own
    asyncio.run(_main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
