"""Programs in the background: started with a log file each, awaited, and always ended.

An API server and other programs of the tests are run by the same few lines; the node uses `started_at` and `end` alone.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

STOP_TIMEOUT = 15.0
"""Seconds between SIGTERM and SIGKILL: etcd and the API server need one or two."""
SELDOM_COLLECTED = {"GOGC": "400"}
"""For programs in Go, beside their environment: they may have so much garbage, in percent of what they use, before they
collect it. That takes a sixth less of the processor's time, and more memory."""
_POLL = 0.05


class NotReadyError(Exception):
    """A program ended, or took too long, before it was ready; the message ends with its log's last lines."""


class Program:
    """One process with its log."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, *, bound: bool = True) -> None:
        """Describe the program.

        Args:
            name: What messages call it.
            command: The program and its arguments.
            log: The file to which both of its outputs are appended.
            bound: Whether it dies with the thread that starts it, even if that is killed.
        """
        self.name = name
        self.log = log
        binding = ["setpriv", "--pdeathsig", "KILL", "--"] if bound else []
        self.command = [*binding, *map(str, command)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, in a process group of its own so that a Ctrl-C meant for the tests spares it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, env=SELDOM_COLLECTED | os.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Return when `ready()` holds.

        Raises:
            NotReadyError: The process ended, or `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise NotReadyError(f"{self.name} ended by itself\n{self.tail()}")
            if time.monotonic() > deadline:
                raise NotReadyError(f"{self.name} was not ready within {timeout:.0f} s\n{self.tail()}")
            time.sleep(_POLL)

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL after STOP_TIMEOUT. Does nothing if it does not run."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tail(self, lines: int = 20) -> str:
        """Where the log is, and its last lines."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"log: {self.log}", *text.splitlines()[-lines:]])


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None for no process, or a zombie.

    Together with the pid this identifies a process. The pid alone does not, because the kernel uses pids again.
    """
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    return None


def running_with(matches: Callable[[Sequence[str]], bool]) -> dict[int, int]:
    """The processes whose command line `matches`, and when each started (`started_at`)."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text(errors="replace").split("\0")
            if matches(words) and (start := started_at(pid := int(path.parent.name))) is not None:
                processes[pid] = start
    return processes


def end(pid: int, start: int, number: signal.Signals = signal.SIGTERM, timeout: float = STOP_TIMEOUT) -> None:
    """End the process that has this pid and started then, and await its end; SIGKILL after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    sent = False
    while started_at(pid) == start:
        if not sent or time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if sent else number)
            sent = True
        time.sleep(_POLL)
