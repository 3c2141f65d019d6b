"""`epochal up` as a process: its one line, its signals, and what is left when it has gone."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.processes import children, runs, until_ended

from epochal.client.catalog.catalog import CatalogClient
from epochal.local.child import console_script

READY = re.compile(r"epochal ready (http://127\.0\.0\.1:[0-9]+) data=(.*)\n")


@asynccontextmanager
async def up(data: Path, *more: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A running `epochal up`, and the line that it printed."""
    process = await asyncio.create_subprocess_exec(
        console_script("epochal"),
        *("up", "--data", str(data), "--port", "0", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            yield process, (await process.stdout.readline()).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    async with up(tmp_path) as (process, line):
        match = READY.fullmatch(line)
        assert match is not None, line
        assert match[2] == str(tmp_path)
        started = children(process.pid)
        assert len(started) == 1, "the catalog"
        process.send_signal(number)
        out, err = await process.communicate()
        assert (process.returncode, out) == (0, b""), err
        assert b"Traceback" not in err
        assert not any(map(runs, started))
    assert not (tmp_path / "lock").exists()


async def test_a_signal_while_starting_stops_everything(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        console_script("epochal"),
        *("up", "--data", str(tmp_path), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        while not (started := children(process.pid)):  # noqa: ASYNC110 - nothing tells of a stranger's children
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    assert (process.returncode, out) == (0, b""), err
    assert b"Traceback" not in err
    assert not any(map(runs, started))
    assert not (tmp_path / "lock").exists()


async def test_nothing_outlives_a_kill_and_the_next_one_starts(tmp_path: Path) -> None:
    async with up(tmp_path) as (process, _):
        started = children(process.pid)
        process.kill()
        await process.wait()
    async with up(tmp_path) as (_, line):
        match = READY.fullmatch(line)
        assert match is not None, "the directory is free at once"
        await until_ended(*started)
        async with CatalogClient(match[1], patience=0) as client:
            assert await client.list() == ()


async def test_a_second_one_names_the_first(tmp_path: Path) -> None:
    async with up(tmp_path) as (first, _), up(tmp_path) as (second, line):
        assert line == ""
        _, err = await second.communicate()
        assert second.returncode == 2
        assert f"process {first.pid}".encode() in err
        assert b"Traceback" not in err
