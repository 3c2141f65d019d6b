"""Ports of this machine that lead to ports of pods, as `kubectl port-forward` makes them; each connection on its own.

A connection that breaks takes no other with it, and the next one looks up its target again, so that a pod that was
restarted is found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

import aiohttp

from epochal.errors import EpochalError

DATA, FAILURE = 0, 1
"""Channels of a connection that forwards one port; the first message of each is that port, in two bytes."""
CHUNK = 64 * 1024
CLOSING = 2.0
"""Seconds for the other side to say goodbye."""

T = TypeVar("T", bound=Hashable)


class Forwarder(Generic[T]):
    """Listens on loopback for each target and carries every connection over one of its own, made by `connect`.

    `connect` raises an `EpochalError` when it cannot; then the connection is closed, and `notify` gets the reason,
    once until a connection to that target has worked again.
    """

    def __init__(
        self, connect: Callable[[T], Awaitable[aiohttp.ClientWebSocketResponse]], notify: Callable[[T, str], None]
    ) -> None:
        self._connect = connect
        self._notify = notify
        self._listening: dict[T, asyncio.Task[asyncio.Server]] = {}
        self._carrying: set[asyncio.Task[None]] = set()
        self._notified: dict[T, str] = {}

    async def port(self, target: T) -> int:
        """The port of this machine that leads to `target`; always the same one."""
        if target not in self._listening:  # a task: several may ask at once, and one may be cancelled
            self._listening[target] = asyncio.create_task(self._listen(target))
        server = await asyncio.shield(self._listening[target])
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections and listen no longer."""
        for listening in self._listening.values():
            with suppress(OSError, asyncio.CancelledError):
                (await listening).close()
        for task in (carrying := list(self._carrying)):
            task.cancel()
        if carrying:
            await asyncio.wait(carrying)

    async def _listen(self, target: T) -> asyncio.Server:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._carry(target, reader, writer), name=f"forward to {target}")
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

        return await asyncio.start_server(accepted, "127.0.0.1", 0, limit=CHUNK)

    async def _carry(self, target: T, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await self._connect(target)
            try:
                failure = await carry(socket, reader, writer)
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING):
                        await socket.close()
        except EpochalError as error:
            failure = str(error)
        finally:
            writer.close()
        if not failure:
            self._notified.pop(target, None)
        elif self._notified.get(target) != failure:
            self._notified[target] = failure
            self._notify(target, failure)


async def carry(
    socket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str:
    """Carry bytes both ways until either side ends; returns what the far side says went wrong, or "".

    The channels have no way to close one direction, so the side that ends one ends both: ZeroMQ and HTTP do not mind.
    """
    up = asyncio.create_task(_up(socket, reader))
    down = asyncio.create_task(_down(socket, writer))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        return down.result() if down.done() else ""
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait((up, down))


async def _up(socket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError, aiohttp.ClientError):
        while data := await reader.read(CHUNK):
            await socket.send_bytes(bytes((DATA,)) + data)


async def _down(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> str:
    failure = b""
    begun = {DATA: False, FAILURE: False}
    with suppress(ConnectionError):
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if not begun.get(channel, True):
                begun[channel], data = True, data[2:]
            if channel == FAILURE:
                failure = (failure + data)[:CHUNK]
            elif channel == DATA and data:
                writer.write(data)
                await writer.drain()
    return failure.decode("utf-8", "replace").strip()
