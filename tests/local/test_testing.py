"""The fixtures for tests of programs, used as docs/python.md says, in a run of pytest of its own."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.patience import PATIENCE

from epochal.testing import LocalServices

CONFTEST = 'pytest_plugins = ["epochal.testing"]\n'
TESTS = """
import asyncio
import os

import epochal


async def publish(stream):
    async with epochal.connect() as client, client.subscribe(stream, since="start") as sub:
        async with client.writer(stream) as writer:
            await writer.append(1, [{"delay": 3}])
            await writer.finish()
        return [(epoch.time, list(epoch.records())) async for epoch in sub.epochs()]


def test_a_program(epochal_catalog, epochal_stream):
    assert os.environ["EPOCHAL_CATALOG"] == epochal_catalog
    stream = epochal_stream(encoding="json", segments=2)
    assert asyncio.run(publish(stream)) == [(1, [{"delay": 3}])]


def test_another_has_a_stream_of_its_own(epochal_stream, epochal_services):
    first, second = epochal_stream(), epochal_stream(shape="(int, int)")
    assert first != second
    assert asyncio.run(publish(first))
    assert {name.partition("-")[0] for name in epochal_services.processes} <= {"catalog", "shared"}


def test_from_a_loop(epochal_stream):
    async def inside():
        return await publish(epochal_stream())

    assert asyncio.run(inside())
"""


def test_the_fixtures_give_real_services_and_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_program.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE * 2, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_they_can_be_stopped_while_they_start() -> None:
    services = LocalServices()
    starting = threading.Thread(target=services.start)
    starting.start()
    deadline = time.monotonic() + PATIENCE
    while services._loop is None:
        assert time.monotonic() < deadline
    services.stop()
    starting.join(PATIENCE)
    assert not starting.is_alive()
    assert not services._thread.is_alive()
