"""A catalog of its own that keeps the address of a publisher that died, and publishers that a test starts itself.

The processes are those of the publisher's tests, loaded by path: directories of tests are no packages.
"""

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.ports import free_port

LEASE = 600
"""Seconds; no lease lapses within a test."""


def _load(path: Path, name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_publisher = _load(Path(__file__).parents[1] / "publisher" / "conftest.py", "client_publisher_fixtures")


class Places:
    """Streams at one catalog, and their publishers: where each is, the test decides."""

    def __init__(self, url: str, logs: Path) -> None:
        self.url, self._logs = url, logs
        self._started: list[Any] = []

    def stream(self, name: str = "") -> Any:
        """A declared stream, with no publisher yet."""
        return _publisher.declare_at(
            self.url, self._logs, name or f"s{next(_numbers)}", progress={"writerTimeout": "10m"}
        )

    def start(self, stream: Any, at: Any = None) -> Any:
        """A publisher; `at`: on the ports of this one, which has ended."""
        if at is None:
            ports = {f"{name}_port": free_port() for name in SOCKETS}
        else:
            ports = {f"{name}_port": int(at.addresses[name].rpartition(":")[2]) for name in SOCKETS}
        self._started.append(stream.start(**ports))
        return self._started[-1]

    def stop(self) -> None:
        """End all publishers."""
        for process in self._started:
            process.stop()


SOCKETS = ("events", "requests", "ingest")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def _long_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    logs = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPOCHAL_CATALOG_LEASE_TTL", str(LEASE))
        patch.setenv("EPOCHAL_CATALOG_SUBSCRIPTION_TTL", "1")
        command = ("epochal-catalog", "serve", "--port", "0", "--data", str(logs / "data"))
        process = _publisher.Process.start(logs / "catalog.log", *command)
    yield process.ready, logs
    process.stop()


@pytest.fixture
def places(_long_leases: tuple[str, Path]) -> Iterator[Places]:
    """The publishers of one test."""
    made = Places(*_long_leases)
    yield made
    made.stop()
