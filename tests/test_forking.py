"""Programs that tests fork: they have what a program has that is started by `exec`."""

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.forking import CLONE, MOST_BYTES
from tests.patience import PATIENCE
from tests.processes import children

from epochal.local.child import Child, console_script

pytestmark = pytest.mark.skipif(CLONE is None, reason="only Linux forks for another process, here on x86 and ARM")
EPOCHAL = console_script("epochal")


def is_forked(pid: int) -> bool:
    return b"forking.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_program_is_a_child_of_who_started_it_in_its_session_and_directory(tmp_path: Path) -> None:
    command, pipe = [EPOCHAL, "sub", "a/b", "--catalog", "http://127.0.0.1:1"], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as program:
        seen = is_forked(program.pid), program.pid in children(os.getpid()), os.readlink(f"/proc/{program.pid}/cwd")
        session = os.getsid(program.pid)
        program.kill()
        assert program.wait() == -signal.SIGKILL
    assert seen == (True, True, str(tmp_path))
    assert session == program.pid


def test_its_arguments_environment_streams_and_exit_code_are_its_own() -> None:
    asked = subprocess.run([EPOCHAL, "--version"], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert re.fullmatch(r"epochal .+\n", asked.stdout)
    wrong = subprocess.run([EPOCHAL, "no-such-command"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no-such-command" in wrong.stderr
    given = {**os.environ, "EPOCHAL_CATALOG": "no-address"}
    misled = subprocess.run([EPOCHAL, "get", "streams"], env=given, capture_output=True, text=True, check=False)
    assert misled.returncode != 0
    assert "no-address" in misled.stderr
    by_env = ["/usr/bin/env", "EPOCHAL_CATALOG=no-address=1", EPOCHAL, "get", "streams"]
    assert "no-address=1" in subprocess.run(by_env, capture_output=True, text=True, check=False).stderr


def test_what_env_starts_is_forked_too(tmp_path: Path) -> None:
    command = ["/usr/bin/env", "EPOCHAL_CATALOG_PORT=0", console_script("epochal-catalog"), "serve"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        forked = is_forked(program.pid)
        program.kill()
    assert forked


def test_files_are_handed_over_under_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text("{}")
    with (tmp_path / "manifest").open() as manifest:
        command = [EPOCHAL, "apply", "--catalog", "http://127.0.0.1:1", "-f", f"/proc/self/fd/{manifest.fileno()}"]
        said = subprocess.run(command, pass_fds=[manifest.fileno()], capture_output=True, text=True, check=False)
    assert "apiVersion" in said.stdout + said.stderr


def test_what_changes_how_an_interpreter_or_a_library_starts_is_not_forked(tmp_path: Path) -> None:
    for name in ("PYTHONUNBUFFERED", "OTEL_SDK_DISABLED", "LC_ALL", "NO_COLOR"):
        with subprocess.Popen(
            [console_script("epochal-catalog"), "serve", "--data", str(tmp_path), "--port", "0"],
            env={**os.environ, name: "other"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as program:  # fmt: skip
            forked = is_forked(program.pid)
            program.kill()
            assert not forked, name


def test_who_is_given_more_than_a_request_can_carry_is_not_forked() -> None:
    with subprocess.Popen(
        [EPOCHAL, "pub", "a/b", "--catalog", "http://127.0.0.1:1", "x" * MOST_BYTES],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        forked = is_forked(program.pid)
        program.kill()
    assert not forked


async def test_what_local_mode_starts_is_forked_from_itself(tmp_path: Path) -> None:
    mode = await Child.start([EPOCHAL, "up", "--data", str(tmp_path), "--port", "0"], tmp_path / "log", 10_000)
    try:
        async with asyncio.timeout(PATIENCE):
            while not (started := children(mode.pid)):  # noqa: ASYNC110 - nothing tells of a stranger's children
                await asyncio.sleep(0.01)
        assert [is_forked(pid) for pid in started] == [True]
    finally:
        assert await mode.stop(30) == 0
