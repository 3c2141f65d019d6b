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
from typing import Any, NamedTuple

_ROLE = Path(__file__).parents[1] / "role.py"
_TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 60.0
"""Seconds without a line of results after which a process counts as failed."""


class Role:
    """One process that plays a part; its results are JSON lines. `name` is for error texts."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def tell(self, number: int) -> None:
        """Give it a number on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        """Processor seconds that it has used so far; it still runs, or has not been waited for."""
        return cpu_seconds(self._process.pid)

    async def line(self) -> Mapping[str, Any]:
        """Its next line of results; raises `RuntimeError` where it ended, or said nothing, instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            text = await asyncio.to_thread(self._process.stdout.readline)
        if not text:
            raise RuntimeError(f"{self._name} ended with status {self._process.wait()} and no result")
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
def c_program(source: Path) -> Iterator[Path | None]:
    """The program that a C file makes; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / source.stem
        subprocess.run([compiler, "-O2", "-o", str(built), str(source)], check=True)
        yield built


@contextmanager
def role(
    function: str,
    path: Sequence[Path] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    **arguments: Any,
) -> Iterator[Role]:
    """One function of `roles` in a process that is ended with the block.

    `path` goes before its imports, and `environment` into its environment.
    """
    command = [sys.executable, str(_ROLE), function, *(f"{key}={value}" for key, value in arguments.items())]
    beside = {"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {}
    with _ended(Role(function, command, {**environment, **beside})) as process:
        yield process


@contextmanager
def program_role(program: Path, *arguments: str) -> Iterator[Role]:
    """A program in a process that is ended with the block."""
    with _ended(Role(program.name, [str(program), *arguments], {})) as process:
        yield process


@contextmanager
def _ended(process: Role) -> Iterator[Role]:
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


class Nats(NamedTuple):
    """A NATS server of the benchmark's own."""

    url: str
    pid: int


@asynccontextmanager
async def nats_server() -> AsyncIterator[Nats]:
    """A NATS server of the benchmark's own. It comes with the development packages."""
    binary = program("nats-server")
    if binary is None:
        raise RuntimeError("nats-server is not installed; run `make setup`")
    port = free_port()
    async with server([binary, "-a", "127.0.0.1", "-p", str(port)], port) as pid:
        yield Nats(f"nats://127.0.0.1:{port}", pid)


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
