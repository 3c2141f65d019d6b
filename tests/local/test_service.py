"""A service is started again when it ends, with growing pauses, and is stopped for good."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests import virtual_time
from tests.patience import PATIENCE

from epochal.errors import TimedOut
from epochal.local.child import Child
from epochal.local.service import LocalSettings, Service, until_ready
from epochal.turns import Turns

QUICK = LocalSettings(restart_first=0.01, restart_last=0.04, stop_timeout=5.0, start_timeout=PATIENCE)
READY = "import sys; print('ready now', flush=True); sys.stdin.read()"


def command(code: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-u", "-c", code]


async def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    readies: asyncio.Queue[str] = asyncio.Queue()
    service = Service("x", command(READY), tmp_path / "log", QUICK, readies.put)
    service.start()
    pids = []
    for _ in range(3):
        async with asyncio.timeout(PATIENCE):
            assert await readies.get() == "now"
        assert service.pid is not None
        pids.append(service.pid)
        os.kill(service.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await readies.get()
    await service.stop()
    assert len(set(pids)) == 3
    assert service.restarts == 3
    assert service.pid is None


async def test_pauses_grow_and_each_end_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = asyncio.Event()

    class Count(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(caplog.records) >= 4:
                ends.set()

    logger = logging.getLogger("epochal.local")
    handler = Count()
    logger.addHandler(handler)
    service = Service("the thing", command("import sys; sys.exit('no room')"), tmp_path / "log", QUICK)
    service.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await ends.wait()
    finally:
        await service.stop()
        logger.removeHandler(handler)
    delays = [record.args[2] for record in caplog.records[:4] if isinstance(record.args, tuple)]
    assert delays == [0.01, 0.02, 0.04, 0.04]
    assert "the thing ended with status 1 (no room)" in caplog.text


async def test_of_one_that_was_killed_the_log_does_not_say_why(tmp_path: Path) -> None:
    service = Service("the thing", command(READY), tmp_path / "log", QUICK)
    said = asyncio.Event()
    logger = logging.getLogger("epochal.local")
    lines = list[str]()

    class Take(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            said.set()

    handler = Take()
    logger.addHandler(handler)
    service.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await service.was_ready.wait()
            assert service.pid is not None
            os.kill(service.pid, signal.SIGKILL)
            await said.wait()
    finally:
        await service.stop()
        logger.removeHandler(handler)
    assert lines[0].startswith("the thing ended with signal 9; starting it again")


async def test_stop_while_starting_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(5):
        service = Service("x", command(READY), tmp_path / "log", QUICK)
        service.start()
        await asyncio.sleep(0)
        await service.stop()
        assert service.pid is None


async def test_a_command_that_cannot_run_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = Service("x", lambda: [str(tmp_path / "none")], tmp_path / "log", QUICK)
    service.start()
    async with asyncio.timeout(PATIENCE):
        while service.restarts < 2:  # noqa: ASYNC110 - nothing else tells of a start that fails
            await asyncio.sleep(0.01)
    await service.stop()
    assert "could not be started (No such file" in caplog.text


async def test_it_waits_for_its_namesake(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def stopping() -> None:
        await gate.wait()

    service = Service("x", command(READY), tmp_path / "log", QUICK)
    service.start(after=asyncio.create_task(stopping()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await service.was_ready.wait()
    assert service.pid is None
    gate.set()
    async with asyncio.timeout(PATIENCE):
        await service.was_ready.wait()
    await service.stop()


@pytest.mark.rule("E12")
async def test_the_end_of_one_that_still_waits_for_its_namesake_waits_for_that_too(tmp_path: Path) -> None:
    """Whoever follows waits for this end only: else two lives of one name would run at once."""
    gone = asyncio.Event()

    async def leave() -> None:
        await gone.wait()

    leaving = asyncio.create_task(leave())
    second = Service("x", command(READY), tmp_path / "log", QUICK)
    second.start(after=leaving)
    stopping = asyncio.create_task(second.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    gone.set()
    async with asyncio.timeout(PATIENCE):
        await stopping


async def test_a_start_that_takes_long_is_no_success_and_pauses_grow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else what is not ready in time is begun again at once, for ever, and nothing else gets the processor."""
    settings = replace(QUICK, start_timeout=0.05, restart_reset=0.01)
    service = Service("slow", command("import time; time.sleep(600)"), tmp_path / "log", settings)
    service.start()
    async with asyncio.timeout(PATIENCE):
        while service.restarts < 3:  # noqa: ASYNC110 - nothing tells of a restart
            await asyncio.sleep(0.01)
    await service.stop()
    told = [record.args for record in caplog.records if isinstance(record.args, tuple)]
    assert [args[2] for args in told[:3]] == [0.01, 0.02, 0.04]
    assert "was not ready within" in str(told[0][1])


class Scripted:
    """A process that computes for so many seconds in each window of time, and is ready in the last one."""

    def __init__(self, *computes: float) -> None:
        self._computes = list(computes)
        self._computed = 0.0

    async def ready(self, timeout: float) -> str:
        self._computed += self._computes.pop(0)
        if not self._computes:
            return "now"
        await asyncio.sleep(timeout)
        raise TimedOut("not yet")

    def progress(self) -> float:
        return self._computed


def waits(timeout: float, times: int, *computes: float) -> str:
    return virtual_time.run(until_ready(Scripted(*computes), timeout, times))


def test_a_process_that_gets_on_is_not_ended_before_it_is_ready() -> None:
    assert waits(20.0, 10, *[0.25] * 10) == "now"
    with pytest.raises(TimedOut, match="not ready within 40 s"):
        waits(20.0, 10, 0.25, 0.1, 0.25)  # it computes too little in the second window
    with pytest.raises(TimedOut, match="not ready within 60 s"):
        waits(20.0, 3, *[5.0] * 10)


async def test_what_a_process_computes_and_prints_is_progress(tmp_path: Path) -> None:
    works = "import time\nwhile time.process_time() < 0.3: pass\nprint('x' * 1000)\n"
    child = await Child.start(command(works + READY)(), tmp_path / "log", 1 << 20)
    await child.ready(PATIENCE)
    assert child.progress() >= 1000.29
    await child.stop(PATIENCE)


async def test_a_few_start_at_once(tmp_path: Path) -> None:
    turns = Turns(1, 600.0)
    gate = tmp_path / "gate"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    first = Service("first", command(waits + READY), tmp_path / "1", QUICK, turns=turns)
    second = Service("second", command(READY), tmp_path / "2", QUICK, turns=turns)
    first.start()
    second.start()
    async with asyncio.timeout(PATIENCE):
        while first.pid is None:  # noqa: ASYNC110 - nothing tells of a start
            await asyncio.sleep(0.01)
        assert second.pid is None
        gate.touch()
        await second.was_ready.wait()
    assert first.was_ready.is_set()
    await first.stop()
    await second.stop()
