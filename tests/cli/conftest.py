"""The commands under test: run as a user does, against the one real local mode of the whole run."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epochal.cli import main

MANIFEST = """
apiVersion: epochal.dev/v1alpha1
kind: Stream
metadata: {name: NAME, namespace: demo}
spec:
  time: {shape: "SHAPE"}
  payload: {encoding: ENCODING}
  segments: SEGMENTS
  publishers: {segmentsPerPod: SEGMENTS}
"""


@dataclass(frozen=True)
class Result:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


class Shell:
    """Runs `epochal` in this process, with standard output and error that are no terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capfdbinary

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["epochal", *map(str, arguments)])
        if stdin is not None:
            self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capture.readouterr()
        assert b"Traceback" not in err
        return Result(int(ended.value.code or 0), out.decode(), err.decode())


@pytest.fixture
def epochal(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Shell:
    """Run one command: `epochal("get", "streams")`."""
    for name in ("EPOCHAL_CATALOG", "EPOCHAL_NAMESPACE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Shell(monkeypatch, capfdbinary)


@pytest.fixture
def catalog(_background: Any) -> str:
    """The catalog of the run's local mode."""
    return str(_background.url)


@pytest.fixture
def shared_processes(_background: Any) -> Callable[[], list[int]]:
    """Tells the processes that serve the streams of the run's local mode now."""
    return lambda: [pid for name, pid in _background.processes.items() if name.startswith("shared-")]


@pytest.fixture
def run(epochal: Shell, catalog: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """One command against that catalog."""
    monkeypatch.setenv("EPOCHAL_CATALOG", catalog)
    return epochal


def _manifest(name: str, *, shape: str = "int", encoding: str = "msgpack", segments: int = 2) -> str:
    """A manifest of a stream in namespace demo."""
    values = {"NAME": name, "SHAPE": shape, "ENCODING": encoding, "SEGMENTS": str(segments)}
    return re.sub("|".join(values), lambda found: values[found[0]], MANIFEST)


@pytest.fixture
def manifest() -> Any:
    """The text of a manifest: `manifest("flights", segments=3)`."""
    return _manifest


@pytest.fixture
def declared(run: Shell, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Declare a stream of the test's own; deleted at its end."""
    names: list[str] = []

    def declare(encoding: str = "msgpack", shape: str = "int", **more: Any) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:48].strip("-") + f"-{len(names)}"
        result = run("apply", "-f", "-", stdin=_manifest(name, shape=shape, encoding=encoding, **more))
        assert result.out == f"stream demo/{name} created\n", result
        names.append(name)
        return f"demo/{name}"

    yield declare
    for name in names:
        run("delete", "stream", f"demo/{name}")
