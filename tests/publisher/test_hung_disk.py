"""A disk that does not answer holds up neither readers nor the end of the process."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.protocol import messages as m

STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}
PROGRAM = """
import sys
import time
from pathlib import Path

from epochal.logfiles.disk import OSDisk
from epochal_publisher.__main__ import main

hung, call = Path(sys.argv.pop(1)), sys.argv.pop(1)
really = getattr(OSDisk, call)


def hangs(*given, **more):
    while hung.exists():
        time.sleep(0.02)
    return really(*given, **more)


setattr(OSDisk, call, hangs)
main()
"""
"""A publisher whose disk hangs, in one of its calls, while a file exists."""


@pytest.fixture
def publisher(tmp_path: Path, process) -> Iterator[Callable[..., Any]]:
    started = []

    def start(stream: Any, call: str, wait: bool = True) -> Any:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "hung"), call, "serve", "--exit-with-stdin"]
        given = {
            "catalog": stream.catalog, "stream": stream.name, "segments": "0,1", "publisher": stream.name,
            "data": tmp_path / "data",
        }  # fmt: skip
        with (tmp_path / "log").open("a") as log:
            popen = subprocess.Popen(
                [*command, *(f"--{name}={value}" for name, value in given.items())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        started.append(process(popen, tmp_path / "log"))
        if wait:
            started[-1].await_ready()
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.rule("E9")
def test_a_sync_that_never_returns_does_not_block_the_end(declare, publisher, wires, tmp_path) -> None:
    """Nor readers from what is durable."""
    stream = declare(segments=2, **STORED)
    running = publisher(stream, "sync")
    writer = wires.writer(running, stream)
    writer.open()
    writer.acked(0, b"durable")
    (tmp_path / "hung").touch()
    writer.append(0, b"never")
    assert wires.subscriber(running, stream).join().seq == 0
    running.signal(signal.SIGTERM)
    assert running.ended(PATIENCE) == 1
    said = running.log.read_text()
    assert "the disk has not answered for 3 s; not waiting for it" in said
    assert "ending without waiting for what hangs: log_" in said
    assert not writer.line.poll(), "and what is not on disk is not acknowledged"
    (tmp_path / "hung").unlink()
    again = publisher(stream, "sync")
    payloads = [event.payload for event in wires.subscriber(again, stream).since(None) if isinstance(event, m.Data)]
    assert payloads[0] == b"durable"
    again.signal(signal.SIGTERM)
    assert again.ended() == 0, "an orderly end is still one"


def test_a_disk_that_hangs_at_the_start_does_not_block_the_end(declare, publisher, tmp_path, wait_until) -> None:
    stream = declare(segments=2, **STORED)
    (tmp_path / "hung").touch()
    running = publisher(stream, "sync_directory", wait=False)
    wait_until((tmp_path / "data" / stream.uid).exists)
    running.signal(signal.SIGTERM)
    assert running.ended(PATIENCE) == 1
    assert "ending without waiting for what hangs" in running.log.read_text()
