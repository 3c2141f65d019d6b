"""Relays as processes, beside the streams of `services`."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.local.child import Child, console_script

LOG_BYTES = 1 << 20


class Relay:
    """One relay of a stream; `addresses` by name."""

    def __init__(self, child: Child, said: str, log: Path) -> None:
        self.child, self.log = child, log
        self.addresses = dict(word.split("=", 1) for word in said.split())

    @property
    def pid(self) -> int:
        return self.child.pid

    async def kill(self) -> None:
        self.child.kill()
        await self.child.ended()
        await self.child.stop(0)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def stop(self) -> None:
        await self.child.stop(20)


class Relays:
    """Starts relays, and ends them when the test is over."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory = url, directory
        self._started: list[Relay] = []

    async def start(self, stream: str, name: str = "relay", **settings: object) -> Relay:
        """Start one and wait until it is ready."""
        log = self._directory / f"{name}-{len(self._started)}.log"
        values = {"catalog": self._url, "stream": stream, "name": name, **settings}
        environment = [f"EPOCHAL_RELAY_{key.upper()}={value}" for key, value in values.items()]
        command = ["env", *environment, console_script("epochal-publisher"), "relay", "--exit-with-stdin"]
        child = await Child.start(command, log, LOG_BYTES)
        relay = Relay(child, await child.ready(60), log)
        self._started.append(relay)
        return relay

    async def close(self) -> None:
        for relay in self._started:
            await relay.stop()


@pytest.fixture
async def relays(services, tmp_path) -> AsyncIterator[Relays]:
    relays = Relays(services.url, tmp_path)
    try:
        yield relays
    finally:
        await relays.close()
