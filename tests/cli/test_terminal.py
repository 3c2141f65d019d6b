"""What only somebody at a terminal sees: lines broken between words, words before a wait, colours unless unwanted."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping

import pytest

from epochal.cli.io.terminal import folded
from epochal.local.child import console_script

CTRL_D = b"\x04"


def at_a_terminal(
    *arguments: str, columns: int = 60, typed: bytes = b"", environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit status of a command and what a terminal of that width is sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [console_script("epochal"), *arguments]
    variables = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
    variables.pop("COLUMNS", None)  # it would count for more than the terminal
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables) as running:
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # how the system tells that nobody holds the other end any more
            pass
        finally:
            os.close(ours)
    return running.returncode, seen.decode().replace("\r\n", "\n")


def test_errors_are_broken_between_words(catalog: str) -> None:
    status, seen = at_a_terminal("describe", "stream", "demo/no-such-stream", "--catalog", catalog, columns=50)
    assert status == 3
    assert seen.startswith("error: there is no stream demo/no-such-stream;\n  `epochal")
    assert max(map(len, seen.split("\n"))) <= 50


def test_who_types_records_sees_how_to_end(declared, run, catalog: str) -> None:
    stream = declared(segments=1)
    status, seen = at_a_terminal("pub", stream, "-t", "1", "--finish", "--catalog", catalog, typed=b"17\n" + CTRL_D)
    assert status == 0
    assert "reading records from the terminal, one a line; Ctrl-D ends" in seen
    assert "published 1 record at 1 time, finished" in seen
    assert run("sub", stream, "--since", "start", "--epochs").out == "1\t17\n"


@pytest.mark.parametrize(
    ("environment", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_unless_they_are_unwanted(
    declared, catalog: str, environment: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(segments=1)
    monkeypatch.delenv("NO_COLOR", raising=False)
    status, seen = at_a_terminal("get", "streams", "--catalog", catalog, columns=120, environment=environment)
    assert status == 0
    assert ("\x1b[" in seen) is colours


def test_lines_that_words_do_not_break_are_left_alone() -> None:
    assert folded("error: http://a.very.long.example/name", 20) == "error:\n  http://a.very.long.example/name"
    assert folded("a  b\tc", 80) == "a  b\tc"
    assert folded("anything else", 5) == "anything else"
