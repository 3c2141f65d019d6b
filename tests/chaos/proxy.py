"""A TCP proxy that misbehaves on demand: between clients and publishers, or in front of the catalog.

It moves bytes and does not know what they mean. Let it listen on another loopback address than the server
(`loopback()`) and on the server's own port: then all clients of a server that advertises the other address come through
the proxy.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

CHUNK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: the kernel sends RST instead of FIN."""

_numbers = itertools.count()


def loopback() -> str:
    """A loopback address that nothing else uses (on Linux all of 127.0.0.0/8 is there).

    A proxy goes on listening when its server has died. The kernel may then give the server's port to another server. If
    all proxies shared an address, the proxy of that server would find the port taken.
    """
    process, number = os.getpid() % (1 << 15), next(_numbers) % 250
    return f"127.{64 + (process >> 8)}.{process & 255}.{2 + number}"


class Way(StrEnum):
    """Which half of a connection."""

    UP = "up"
    """From the client to the server."""
    DOWN = "down"
    """From the server to the client."""


BOTH = frozenset(Way)
"""Both ways blocked: half-open, as when every packet is dropped; neither side notices."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to bytes. `delay` in seconds, `rate` in bytes/s (0: unbounded).

    `blocked`: ways that forward nothing, not even the end of the connection. What was sent meanwhile arrives after
    healing, as TCP's retransmissions would.
    """

    delay: float = 0.0
    rate: float = 0.0
    blocked: frozenset[Way] = frozenset()


NONE = Trouble()


class Connection:
    """One proxied connection; its `trouble` adds to the proxy's."""

    def __init__(self, proxy: "Proxy", client: asyncio.StreamWriter) -> None:
        self.trouble = NONE
        self._proxy = proxy
        self._writers = [client]

    async def run(self, reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        """Forward both ways until either ends; if the server is not there, reset the client."""
        try:
            upstream, server = await asyncio.open_connection(*target, limit=CHUNK)
        except OSError:
            self.cut()
            return
        self._writers.append(server)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(Way.UP, reader, server))
                ways.create_task(self._pump(Way.DOWN, upstream, self._writers[0]))
        except* OSError:
            self.cut()  # one side was reset: reset the other too
        finally:
            for writer in self._writers:
                writer.close()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            chunk = await reader.read(CHUNK)
            await self._suffer(way, len(chunk))
            if not chunk:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()

    async def _suffer(self, way: Way, size: int) -> None:
        while way in self.trouble.blocked | self._proxy.trouble.blocked:
            await self._proxy.changed()
        delay = max(self.trouble.delay, self._proxy.trouble.delay)
        rate = min((rate for rate in (self.trouble.rate, self._proxy.trouble.rate) if rate), default=0.0)
        if rate:
            delay += size / rate
        if delay:
            await asyncio.sleep(delay)

    def cut(self) -> None:
        """Reset both sides, at once."""
        for writer in self._writers:
            with contextlib.suppress(OSError):  # it is closed already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """Forwards `listen` to `target` while entered; `trouble` holds for every connection, also those to come."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.listen, self.target = listen, target
        self.trouble = NONE
        self.connections: list[Connection] = []
        """The open ones, oldest first."""
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.admit()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        tasks = list(self._tasks)
        self.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suffer(self, trouble: Trouble, connections: Iterable[Connection] | None = None) -> None:
        """Apply `trouble` to `connections` (None: all, also those to come) from now on."""
        if connections is None:
            self.trouble = trouble
        else:
            for connection in connections:
                connection.trouble = trouble
        self._wake()

    def cut(self, connections: Iterable[Connection] | None = None) -> int:
        """Reset `connections` (None: all open ones); returns how many."""
        cut = list(self.connections if connections is None else connections)
        for connection in cut:
            connection.cut()
        return len(cut)

    def refuse(self) -> None:
        """Take no new connections: the port answers with a reset. Open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def admit(self) -> None:
        """Take connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, *self.listen, limit=CHUNK)

    async def heal(self) -> None:
        """End every trouble; what was cut stays cut."""
        self.trouble = NONE
        for connection in self.connections:
            connection.trouble = NONE
        self._wake()
        await self.admit()

    async def changed(self) -> None:
        """Wait until some trouble changes."""
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(self, writer)
        self.connections.append(connection)
        self._tasks.add(task)
        try:
            await connection.run(reader, self.target)
        except asyncio.CancelledError:
            connection.cut()  # the proxy closes; a task of a server must not end as cancelled
        finally:
            self.connections.remove(connection)
            self._tasks.discard(task)
