"""`publish.py` without an event loop: the same steps, and each call waits. It is started in the same way."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import epochal


def publish(stream: str, writer_id: str, path: Path) -> None:
    """Publish what was not published yet, and finish; an error leaves what was begun to the next start."""
    with epochal.connect_blocking() as client, client.writer(stream, writer_id, on_error="detach") as writer:
        published, hour = writer.resume_from, -1
        for number, line in enumerate(path.read_text().splitlines()):
            if number <= published:
                continue
            record = json.loads(line)
            if record["hour"] > hour:
                hour = record["hour"]
                writer.advance_nowait(hour)
            writer.append_nowait(hour, [record], key=record["origin"].encode(), source=number)
            writer.drain()
        writer.finish()


if __name__ == "__main__":
    with suppress(epochal.StreamComplete):
        publish(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
