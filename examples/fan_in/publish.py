"""Publishes a file of JSON lines, each line once, wherever the program is killed: start it again, and it goes on.

    python examples/fan_in/publish.py STREAM WRITER_ID FILE

Each line has an `hour`, which never goes back, and an `origin`, the key. docs/exactly-once.md explains each step.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import epochal
from epochal.errors import StreamComplete


@contextmanager
def kept(writer: epochal.Writer) -> Iterator[None]:
    """Where the program ends by an error, leave what was begun to its next start; by itself a writer aborts that."""
    try:
        yield
    except BaseException:
        writer.detach()
        raise


async def publish(stream: str, writer_id: str, path: Path) -> None:
    """Publish what was not published yet, and finish."""
    async with epochal.connect() as client, client.writer(stream, writer_id) as writer:
        with kept(writer), path.open() as lines:
            hour = -1
            for number, line in enumerate(lines):
                if number <= writer.resume_from:
                    continue  # published before this start
                record = json.loads(line)
                if record["hour"] > hour:
                    hour = record["hour"]
                    if writer.held[0] < hour:
                        writer.advance_nowait(hour)  # nothing more comes before this hour
                writer.append_nowait(hour, [record], key=record["origin"].encode(), source=number)
                await writer.drain()
            await writer.finish()


if __name__ == "__main__":
    with suppress(StreamComplete):  # it had finished before, and so had all others
        asyncio.run(publish(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
