"""What the machine can do with the files of a log: read them one behind the other, and checksum what was read."""

import time
from pathlib import Path

import google_crc32c

from epochal.logfiles import SegmentLog
from roles.common import say

READ = 256 * 1024
"""Bytes read at once, as the log's own reader does."""


def scan(directory: str) -> None:
    """Read every log file of `directory` once; tells how many bytes a second."""
    paths = sorted(Path(directory).glob("*.log"))
    start, size = time.monotonic(), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while data := file.read(READ):
                google_crc32c.value(data)
                size += len(data)
    say(rate=size / (time.monotonic() - start))


def read_log(directory: str, stream: str, segment: str) -> None:
    """Read every event of the log in `directory`, which nobody else has; tells how many bytes a second."""
    with SegmentLog.open(Path(directory), stream, segment, instance="benchmark") as log:
        assert log.recovered is not None
        log.begin(log.incarnation + 1, log.recovered.checkpoint)
        start, at, size = time.monotonic(), log.first, 0
        while batch := log.read(at, 1024, 1 << 20):
            at, size = batch.last, size + sum(map(len, batch.data))
        say(rate=size / (time.monotonic() - start))
