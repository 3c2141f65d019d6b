"""What tests of the sidecar share: a real one as a process, and what it says of itself."""

import asyncio
import contextlib
import os
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Services
from tests.patience import PATIENCE

import epochal
from epochal.client.sidecar import sidecar as client_sidecar
from epochal.client.sidecar.connections import close_idle
from epochal.local.child import console_script


class Process:
    """A running `epochal-publisher sidecar`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, errors: Path) -> None:
        self._process, self.address, self._errors = process, address, errors
        self.http = ""

    @classmethod
    async def start(cls, listen: str, catalog: str, directory: Path, **settings: object) -> "Process":
        """Start one and wait until it listens; `settings` as EPOCHAL_SIDECAR_*."""
        errors = directory / "sidecar.log"
        environment = {
            **os.environ,
            **{f"EPOCHAL_SIDECAR_{key.upper()}": str(value) for key, value in settings.items()},
        }
        environment.pop("EPOCHAL_SIDECAR", None)
        with errors.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                console_script("epochal-publisher"), "sidecar", "--listen", listen, "--catalog", catalog,
                "--http-port", "0", "--exit-with-stdin",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment,
            )  # fmt: skip
        started = cls(process, listen, errors)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                line = (await process.stdout.readline()).decode()
            assert line.startswith("ready "), errors.read_text()
        except BaseException:
            await started.stop()
            raise
        started.http = line.split("http=")[1].strip()
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._errors.read_text()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            code = await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code

    async def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
                self._process.kill()
        await self.ended()

    async def get(self, path: str) -> tuple[int, str]:
        """(status, text) of its HTTP side."""

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(self.http + path, timeout=PATIENCE) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(ask)

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        for line in text.splitlines():
            if line.startswith((f"epochal_sidecar_{name}{{", f"epochal_sidecar_{name} ")):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} in {text}")


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short one: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ep-") as name:
        yield Path(name)


@pytest.fixture
async def start(services: Services, directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Start sidecars; writers of this process use the first one's address, and may not do without."""
    started: list[Process] = []

    async def start(listen: str = "", **settings: object) -> Process:
        address = listen or f"ipc://{directory}/s"
        process = await Process.start(address, services.url, directory, **settings)
        started.append(process)
        monkeypatch.setenv("EPOCHAL_SIDECAR", address)
        monkeypatch.setenv("EPOCHAL_SIDECAR_REQUIRED", "true")
        monkeypatch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "30")  # a busy machine is no reason to fail
        return process

    yield start
    for process in started:
        await process.stop()


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """What an earlier test found out about a sidecar is no news here."""
    client_sidecar._absent.clear()
    client_sidecar.fallbacks.clear()
    yield
    client_sidecar._absent.clear()
    close_idle()


@pytest.fixture
async def client(services: Services) -> AsyncIterator[epochal.Client]:
    async with epochal.connect(services.url) as client:
        yield client


async def records(client: epochal.Client, stream: str) -> list[Any]:
    """All records of a complete stream, in the order of their epochs, sorted in each; None for an aborted one."""
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        epochs = [epoch async for epoch in sub.epochs()]
    return [sorted(epoch.records()) if isinstance(epoch, epochal.Epoch) else None for epoch in epochs]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  # of another process nothing can be awaited
            await asyncio.sleep(0.05)
