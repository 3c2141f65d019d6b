"""The processes that a benchmark starts, and what the system says of them.

Apart from the measures because a process is started, awaited and ended in the same way whatever it does.
"""

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

_ROLE = Path(__file__).parents[1] / "role.py"
_TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 60.0
"""Seconds without a line of results after which a process counts as failed."""


class Role:
    """One process that plays one function of `roles`; its results are JSON lines.

    `path` goes before its imports, and `environment` into its environment.
    """

    def __init__(
        self,
        function: str,
        path: Sequence[Path] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        **arguments: Any,
    ) -> None:
        command = [sys.executable, str(_ROLE), function, *(f"{key}={value}" for key, value in arguments.items())]
        given = {**os.environ, **environment}
        if path:
            given["PYTHONPATH"] = os.pathsep.join(map(str, path))
        self._function = function
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given)

    def tell(self, number: int) -> None:
        """Give it a number on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    async def line(self) -> Mapping[str, Any]:
        """Its next line of results; raises `RuntimeError` where it ended, or said nothing, instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            text = await asyncio.to_thread(self._process.stdout.readline)
        if not text:
            raise RuntimeError(f"{self._function} ended with status {self._process.wait()} and no result")
        return json.loads(text)  # type: ignore[no-any-return]  # every role prints objects

    def end(self) -> None:
        """Close its standard input, at which a role that waits for orders ends, and wait for that."""
        self._process.communicate(timeout=PATIENCE)

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def role(
    function: str,
    path: Sequence[Path] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    **arguments: Any,
) -> Iterator[Role]:
    """A role that is ended with the block."""
    process = Role(function, path, environment, **arguments)
    try:
        yield process
    finally:
        process.stop()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, all its threads, user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory that a process occupies now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str | None:
    """Where a program is: beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@asynccontextmanager
async def server(command: Sequence[str], port: int) -> AsyncIterator[int]:
    """A server process, from when it listens on `port` to the end of the block; yields its process id."""
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command[0]} ended with status {process.returncode}") from None
                    await asyncio.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 15)


@asynccontextmanager
async def nats_server() -> AsyncIterator[str]:
    """A NATS server of the benchmark's own; yields its URL. It comes with the development packages."""
    binary = program("nats-server")
    if binary is None:
        raise RuntimeError("nats-server is not installed; run `make setup`")
    port = free_port()
    async with server([binary, "-a", "127.0.0.1", "-p", str(port)], port):
        yield f"nats://127.0.0.1:{port}"


@asynccontextmanager
async def jetstream_server(directory: Path) -> AsyncIterator[str]:
    """A NATS server with JetStream, whose files under `directory` are synced with each message; yields its URL."""
    binary, port = program("nats-server"), free_port()
    if binary is None:
        raise RuntimeError("nats-server is not installed; run `make setup`")
    with tempfile.TemporaryDirectory(dir=directory) as data:
        settings = Path(data) / "settings"
        settings.write_text(f'jetstream {{ store_dir: "{data}", sync_interval: always }}\n')
        async with server([binary, "-a", "127.0.0.1", "-p", str(port), "-c", str(settings)], port):
            yield f"nats://127.0.0.1:{port}"


@asynccontextmanager
async def redis_server(directory: Path) -> AsyncIterator[int]:
    """A Redis server that syncs to a file under `directory` before it answers; yields its port."""
    binary, port = program("redis-server"), free_port()
    assert binary is not None, "whoever asks for it has looked"
    with tempfile.TemporaryDirectory(dir=directory) as data:
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", data, "--save", ""]
        async with server([*command, "--appendonly", "yes", "--appendfsync", "always"], port):
            yield port
