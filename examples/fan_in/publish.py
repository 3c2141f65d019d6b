"""Publishes a file of JSON lines, each line once, wherever the program is killed: start it again, and it goes on.

    python examples/fan_in/publish.py STREAM WRITER_ID FILE

Each line has an `hour`, which never goes back, and an `origin`, the key. docs/exactly-once.md explains each step.
"""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

import epochal


async def publish(stream: str, writer_id: str, path: Path) -> None:
    """Publish what was not published yet, and finish; an error leaves what was begun to the next start."""
    async with epochal.connect() as client, client.writer(stream, writer_id, on_error="detach") as writer:
        with path.open() as lines:
            hour = -1
            for number, line in enumerate(lines):
                if number <= writer.resume_from:
                    continue  # published before this start
                record = json.loads(line)
                if record["hour"] > hour:
                    hour = record["hour"]
                    writer.advance_nowait(hour)  # nothing more comes before it; does nothing where that is known
                writer.append_nowait(hour, [record], key=record["origin"].encode(), source=number)
                await writer.drain()
            await writer.finish()


if __name__ == "__main__":
    with suppress(epochal.StreamComplete):  # it had finished before, and so had all others
        asyncio.run(publish(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
