"""A child process: ready, ended, stopped, never left behind."""

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.processes import until_ended

from epochal.errors import ConfigError, TimedOut, Unavailable
from epochal.local.child import Child, console_script

UNTIL_EOF = "import sys; sys.stdin.read()"
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def log_size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


async def start(tmp_path: Path, code: str) -> Child:
    return await Child.start([sys.executable, "-u", "-c", code], tmp_path / "log", 10_000)


async def test_the_ready_line_is_found_among_others(tmp_path: Path) -> None:
    child = await start(tmp_path, f"print('warning'); print('ready a=1 b=2'); {UNTIL_EOF}")
    assert await child.ready(10) == "a=1 b=2"
    assert await child.stop(10) == -signal.SIGTERM
    assert (tmp_path / "log").read_text() == "warning\nready a=1 b=2\n"


async def test_a_ready_line_may_come_in_pieces(tmp_path: Path) -> None:
    pieces = "for part in ('rea', 'dy a', '=1\\n'): sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.05)"
    child = await start(tmp_path, f"import sys, time\n{pieces}\nsys.stdin.read()")
    assert await child.ready(10) == "a=1"
    await child.stop(10)


async def test_an_end_before_ready_is_reported(tmp_path: Path) -> None:
    child = await start(tmp_path, "import sys; print('cannot'); sys.exit(3)")
    with pytest.raises(Unavailable, match="ended before"):
        await child.ready(10)
    assert await child.ended() == 3
    assert await child.stop(0) == 3
    assert (tmp_path / "log").read_text() == "cannot\n"


async def test_a_child_that_is_never_ready_times_out(tmp_path: Path) -> None:
    child = await start(tmp_path, UNTIL_EOF)
    with pytest.raises(TimedOut):
        await child.ready(0.05)
    await child.stop(10)


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = await start(tmp_path, f"{DEAF}; print('ready x'); {UNTIL_EOF}")
    await child.ready(10)
    assert await child.stop(0.1) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_endless_output_without_lines_is_bounded(tmp_path: Path) -> None:
    child = await start(tmp_path, "print('x' * 1_000_000, end=''); print(); print('ready y')")
    assert await child.ready(10) == "y"
    await child.ended()
    await child.stop(0)
    assert log_size(tmp_path) <= 20_000


async def test_a_ctrl_c_for_us_does_not_reach_it(tmp_path: Path) -> None:
    child = await start(tmp_path, UNTIL_EOF)
    assert os.getpgid(child.pid) != os.getpgid(0)
    await child.stop(10)


async def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """What the services rely on: the pipe closes with us, however we end."""
    parent_code = f"""
import asyncio, sys
from pathlib import Path
from epochal.local.child import Child
async def main():
    child = await Child.start([sys.executable, "-c", {UNTIL_EOF!r}], Path({str(tmp_path / "log")!r}), 1000)
    print("ready", child.pid, flush=True)
    await child.ended()
asyncio.run(main())
"""
    parent = await start(tmp_path, parent_code)
    orphan = int(await parent.ready(10))
    parent.kill()
    await parent.ended()
    await parent.stop(0)
    await until_ended(orphan)


def test_a_missing_command_is_reported() -> None:
    with pytest.raises(ConfigError, match="pip install"):
        console_script("epochal-no-such-command")
