"""What `helm test` runs, as a process against real services: it passes when records come back, and fails when not."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import find, render
from tests.patience import PATIENCE

EPOCHAL = f'#!/bin/sh\nexec {sys.executable} -c "from epochal.cli import main; main()" "$@"\n'
"""The command, of this checkout."""


@pytest.fixture
async def attempt(services: Any, tmp_path: Path) -> Callable[[str, int], Awaitable[subprocess.CompletedProcess[str]]]:
    """Run the test pod's own command against a stream as its own is, with this text as the command `epochal`."""
    objects = render()
    spec = find(objects, "Stream", "-test")["spec"]
    stream = await services.stream(encoding=spec["payload"]["encoding"], shape=spec["time"]["shape"])
    (container,) = find(objects, "Pod", "-test")["spec"]["containers"]
    assert {each["name"] for each in container["env"]} == {"EPOCHAL_CATALOG", "STREAM", "TIMEOUT"}
    command = [*container["command"], container["args"][0].replace("/tmp/", f"{tmp_path}/")]

    def run(epochal: str, timeout: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / "epochal").write_text(epochal)
        (tmp_path / "epochal").chmod(0o755)
        told = {"EPOCHAL_CATALOG": services.url, "STREAM": stream, "TIMEOUT": str(timeout)}
        told["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(command, env=os.environ | told, capture_output=True, text=True, timeout=PATIENCE * 2)

    return lambda epochal, timeout: asyncio.to_thread(run, epochal, timeout)


async def test_what_is_published_comes_back(attempt: Any):
    done = await attempt(EPOCHAL, 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'received "sent by epochal, revision 1"' in done.stdout
    assert done.stdout.endswith("the epoch came back whole\n")


async def test_it_fails_when_something_else_comes_back(attempt: Any):
    done = await attempt(EPOCHAL.replace("exec", '[ "$1" = sub ] && { echo other; exit 0; }\nexec'), 60)
    assert done.returncode != 0
    assert done.stdout.endswith("received other\n")


async def test_it_fails_when_nothing_comes_back(attempt: Any):
    done = await attempt(EPOCHAL.replace("exec", '[ "$1" = sub ] && exec sleep 300\nexec'), 5)
    assert done.returncode != 0
    assert "came back whole" not in done.stdout
