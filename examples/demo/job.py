"""The demo's Spark job as a process, which is ended with everything that it started.

A JVM and Spark's workers depend on this process; none of them may outlive the demo, however it ends.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from epochal.errors import EpochalError

END_TIMEOUT = 10.0
"""Seconds that the job's processes get to end by themselves."""


class Job:
    """A running job while entered. `work` is its directory; what it and Spark print besides goes to `work/job.log`.

    `environment`: more of it than this process has.
    """

    def __init__(self, script: Path, work: Path, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.work = work
        self.log = work / "job.log"
        self._more = dict(environment)
        self._command = [str(script), "--work", str(work), *arguments]
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.work,
                env={**environment(self.work), **self._more},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the job in order
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the job and wait until its process group is empty."""
        group = self._process.pid
        if self._process.stdin is not None:
            self._process.stdin.close()  # it ends with its input, and the JVM with it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT):
                await self._process.wait()
                while _there(group):  # noqa: ASYNC110 - the last process to leave a group tells nobody
                    await asyncio.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        await self._process.wait()

    def begin(self) -> None:
        """Let it publish."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What the job tells, until it ends. Raises `EpochalError` with the end of its log if it failed."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield json.loads(line)
        status = await self._process.wait()
        if status:
            raise EpochalError(f"the Spark job failed (status {status}); the end of {self.log}:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line[:300]}" for line in lines[-30:])


def _there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def environment(work: Path) -> dict[str, str]:
    """Our own Python for Spark's workers, the loopback only, and every temporary file under `work`."""
    temporary = work / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    # A JVM prints its own warnings to the standard output, on which the job sends its events.
    java = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData -Xlog:disable -Xlog:all=warning:stderr"
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(temporary),
        "TMPDIR": str(temporary),
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {java}".strip(),
    }
