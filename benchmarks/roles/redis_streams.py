"""Appends to a Redis stream, in Redis's own protocol over one connection: one command needs no client library."""

import asyncio
import time

import msgpack

from roles.common import RECORD, say


async def append(port: int, key: str, batch: int, messages: int, together: int) -> None:
    """`together` appends are under way at any time; tells how many a second were acknowledged."""
    payload = msgpack.packb([RECORD] * batch)
    parts = [b"XADD", key.encode(), b"*", b"d", payload]
    command = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start, sent = time.monotonic(), 0
    for acknowledged in range(messages):
        while sent < min(messages, acknowledged + together):
            writer.write(command)
            sent += 1
        await writer.drain()
        size = await reader.readline()
        if size[:1] != b"$":
            raise RuntimeError(f"Redis answered {size!r}")
        await reader.readline()
    say(rate=messages / (time.monotonic() - start))
    writer.close()
    await writer.wait_closed()
