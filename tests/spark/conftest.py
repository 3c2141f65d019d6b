"""One local mode for all tests of this part, a fresh stream for each, and Spark where there is Java."""

import asyncio
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.patience import PATIENCE

import epochal_spark
from epochal.client.catalog.catalog import CatalogClient
from epochal.local import LocalMode, LocalSettings

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

Declare = Callable[..., str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "java: runs Spark, which needs Java")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs Java where there is none."""
    if shutil.which("java") or os.environ.get("JAVA_HOME"):
        return
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(pytest.mark.skip(reason="Spark needs Java 17 or newer, and there is none on the PATH"))


class _LocalThread:
    """Local mode in a thread with a loop of its own, so that it outlives the loops of single tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._local = LocalMode(settings=LocalSettings(poll_interval=0.05))
        self.call(self._local.__aenter__())
        self.url = self._local.url

    def call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE)

    def close(self) -> None:
        self.call(self._local.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def local() -> Iterator[_LocalThread]:
    running = _LocalThread()
    yield running
    running.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests; starting one takes seconds."""
    session = epochal_spark.session("tests", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    session.sparkContext.setLogLevel("OFF")
    gateway: Any = SparkContext._gateway
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input, and would otherwise outlive the tests' own check
    gateway.proc.wait(PATIENCE * 2)  # it may archive its classes first
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def catalog(local: _LocalThread) -> str:
    """The URL of a running catalog."""
    return local.url


@pytest.fixture
def declare(local: _LocalThread) -> Iterator[Declare]:
    """Declare a stream of a fresh name: `declare(shape="int", segments=2)` returns `test/<name>` once it is served.

    It is deleted after the test, so that its publisher ends: dozens of idle ones take a sixth of a processor.
    """
    names: list[str] = []

    async def apply(shape: str, encoding: str, segments: int, timeout: str, schema: dict[str, str] | None) -> str:
        name = f"s{uuid.uuid4().hex[:12]}"
        payload: dict[str, Any] = {"encoding": encoding}
        if schema is not None:
            payload["schema"] = {"fields": [{"name": field, "type": kind} for field, kind in schema.items()]}
        document = {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": "test"},
            "spec": {
                "time": {"shape": shape},
                "payload": payload,
                "segments": segments,
                "progress": {"writerTimeout": timeout},
                "publishers": {"segmentsPerPod": segments},
            },
        }
        async with CatalogClient(local.url) as client:
            names.append(name)
            await client.apply(document, "test", name)
            await client.lookup("test", name, wait=PATIENCE)
        return f"test/{name}"

    def declared(
        shape: str = "int",
        encoding: str = "msgpack",
        segments: int = 2,
        timeout: str = "60s",
        schema: dict[str, str] | None = None,
    ) -> str:
        return str(local.call(apply(shape, encoding, segments, timeout, schema)))

    async def delete() -> None:
        async with CatalogClient(local.url) as client:
            for name in names:
                await client.delete("test", name)

    yield declared
    local.call(delete())
