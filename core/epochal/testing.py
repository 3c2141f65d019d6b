"""Fixtures of pytest for tests of programs that publish and subscribe: real services, and a fresh stream for each test.

In a `conftest.py`, with `pip install "epochal[local]"`:

    pytest_plugins = ["epochal.testing"]

and then

    async def test_delays(epochal_catalog, epochal_stream):
        stream = epochal_stream(encoding="json")
        async with epochal.connect(epochal_catalog) as client, client.writer(stream) as writer:
            ...

The catalog and the publishers are processes of this machine, in a temporary directory. They run from the first test
that needs them to the end of the run, and end with it whatever happens.
"""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import StreamNotFound, TimedOut
from epochal.local import LocalMode, LocalSettings
from epochal.resources.manifest import API_VERSION

NAMESPACE = "test"
"""The namespace of the streams that are declared here."""
PATIENCE = 60.0
"""Seconds for the services to start and to stop, and for a stream to be served."""


class LocalServices:
    """A local mode on an event loop of its own, in a thread, because each test may have another loop.

    `port`: the catalog's; 0 is any that is free.
    """

    def __init__(self, *, port: int = 0) -> None:
        self._port = port
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._in_thread, name="epochal local mode")

    def start(self) -> None:
        """Start the services. Raises what `LocalMode` raises, and `TimedOut`."""
        self._thread.start()
        if not self._begun.wait(PATIENCE):
            self.stop()
            raise TimedOut(f"the services were not ready within {PATIENCE:g} s")
        if self._failed is not None:
            raise self._failed

    def _in_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # raised by `start`
            self._failed = error
        finally:
            self._begun.set()

    async def _run(self) -> None:
        self._running, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        with contextlib.suppress(asyncio.CancelledError):  # by `stop`, also while they start
            async with LocalMode(port=self._port, settings=LocalSettings(poll_interval=0.05)) as self.mode:
                self.url = self.mode.url
                self._begun.set()
                await asyncio.Event().wait()

    @property
    def processes(self) -> dict[str, int]:
        """Ids of the running processes: `catalog`, `shared-0` and so on, and dedicated publishers by their names.

        For tests that end some: `epochal_stream(publishers={"dedicated": True})` has one of its own.
        """

        async def read() -> dict[str, int]:
            return self.mode.processes

        assert self._loop is not None, "started"
        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(PATIENCE)

    def stop(self) -> None:
        """Stop them, and wait until they have ended. Does nothing where they have."""
        if self._loop is not None and self._running is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._running.cancel)
        self._thread.join(PATIENCE)


@pytest.fixture(scope="session")
def epochal_services() -> Iterator[LocalServices]:
    """The running services; most tests need only `epochal_catalog` and `epochal_stream`."""
    services = LocalServices()
    try:
        services.start()
        yield services
    finally:  # also where the run of tests is interrupted while they start
        services.stop()


@pytest.fixture
def epochal_catalog(epochal_services: LocalServices, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the catalog, which is also in EPOCHAL_CATALOG for the time of the test."""
    monkeypatch.setenv("EPOCHAL_CATALOG", epochal_services.url)
    return epochal_services.url


@pytest.fixture
def epochal_stream(epochal_catalog: str) -> Iterator[Callable[..., str]]:
    """Declares a stream under a fresh name and waits until it is served; it is deleted after the test.

    `epochal_stream(shape="int", encoding="msgpack", **spec)` returns its `namespace/name`; `spec` are more fields of a
    manifest's `spec`, such as `segments=4` or `history={"storage": {"size": "1Gi"}}`.
    """
    names: list[str] = []

    def declare(*, shape: str = "int", encoding: str = "msgpack", **spec: Any) -> str:
        name = f"s-{uuid.uuid4().hex[:12]}"
        manifest = {
            "apiVersion": API_VERSION,
            "kind": "Stream",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"payload": {"encoding": encoding}, **spec, "time": {"shape": shape}},
        }

        async def apply() -> None:
            async with CatalogClient(epochal_catalog) as catalog:
                await catalog.apply(manifest, NAMESPACE, name)
                names.append(name)
                await catalog.lookup(NAMESPACE, name, wait=PATIENCE)

        _to_the_end(apply)
        return f"{NAMESPACE}/{name}"

    async def delete() -> None:
        async with CatalogClient(epochal_catalog) as catalog:
            for name in names:
                with contextlib.suppress(StreamNotFound):  # a test may have deleted it
                    await catalog.delete(NAMESPACE, name)

    yield declare
    _to_the_end(delete)


def _to_the_end(work: Callable[[], Any]) -> None:
    """Run a coroutine function in a thread: the test that asks for it may be one that runs on a loop."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
