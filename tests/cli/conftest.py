"""A local mode for the commands under test, and a way to run one command as a user does."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from epochal.cli import main


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
    monkeypatch.delenv("EPOCHAL_CATALOG", raising=False)
    return Shell(monkeypatch, capfdbinary)
