"""Appends to a NATS JetStream stream in files, each acknowledged once it is synced."""

import time

import msgpack
import nats

from roles.common import RECORD, at_once, say


async def append(url: str, subject: str, batch: int, messages: int, together: int) -> None:
    """`together` appends are under way at any time; tells how many a second were acknowledged."""
    payload = msgpack.packb([RECORD] * batch)
    connection = await nats.connect(url)
    stream = connection.jetstream()
    await stream.add_stream(name=subject, subjects=[subject])
    start = time.monotonic()

    async def publish(number: int) -> None:
        await stream.publish(subject, payload)

    await at_once(together, messages, publish)
    say(rate=messages / (time.monotonic() - start))
    await stream.delete_stream(subject)
    await connection.close()
