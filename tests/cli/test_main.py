"""What holds for every command: help, version, exit statuses, errors as one block."""

import re
import subprocess
import sys

import pytest
from tests.patience import PATIENCE

from epochal.cli.failures import ExitStatus, describe, status_of
from epochal.errors import (
    CatalogUnavailable,
    EpochalError,
    ManifestError,
    NoPublisher,
    StreamComplete,
    StreamNotFound,
    TimeShapeError,
)
from epochal.local.child import console_script
from epochal.protocol import frontier

COMMANDS = ("up", "apply", "delete", "get", "describe", "release", "pub", "sub", "doctor", "log", "completion")


def test_version(epochal) -> None:
    result = epochal("--version")
    assert (result.status, result.err) == (0, "")
    kind = "compiled" if frontier.__file__.endswith(".so") else "pure Python"
    assert re.fullmatch(rf"epochal 0\.\d+\.\d+ \({kind}\)\n", result.out)


def test_help_lists_the_exit_statuses(epochal) -> None:
    result = epochal("--help")
    assert result.status == 0
    for status in ExitStatus:
        assert f"\n    {status.value:<4}" in result.out
    assert all(f"\n  {command} " in result.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(epochal, command: str) -> None:
    result = epochal(command, "--help")
    assert result.status == 0
    assert "Example" in result.out
    assert f"epochal {command}" in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frob"],
        ["get"],
        ["get", "pods"],
        ["apply"],
        ["delete"],
        ["delete", "stream"],
        ["delete", "stream", "x", "-f", "y"],
        ["describe", "pod", "x"],
        ["pub", "x", "record"],
        ["pub", "x"],
        ["sub", "x", "--json", "--raw"],
        ["pub", "x", "-t", "1", "--time-field", "t"],
        ["pub", "x", "-t", "1", "-k", "a", "--key-field", "b", "r"],
        ["get", "streams", "-o", "xml"],
        ["describe", "publishers", "x"],
        ["describe", "stream"],
        ["delete", "writers", "x"],
        ["release"],
        ["release", "x"],
        ["release", "x", "w"],  # nobody to ask, and no --yes
        ["completion", "csh"],
        ["doctor", "--timeout", "0"],
        ["log", "mend", "."],
        ["log", "verify"],
        ["log", "verify", ".", "-o", "wide"],
        ["sub", "x", "--count", "0"],
        ["sub", "Not_A_Name"],
        ["get", "streams", "--catalog", "nonsense"],
        ["up", "--port", "70000"],
    ],
)
def test_wrong_usage_is_status_2(epochal, arguments: list[str]) -> None:
    result = epochal(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sub", "x", "--json", "--raw"], "error: --json and --raw exclude each other\n"),
        (["get"], "error: missing argument 'KIND'\nwhat to do: see `epochal get --help`\n"),
    ],
)
def test_wrong_usage_is_explained_in_plain_words(epochal, arguments: list[str], told: str) -> None:
    assert epochal(*arguments).err.startswith(told)


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("main", {"aiohttp", "asyncio", "importlib.metadata", "pydantic", "rich", "zmq"}),
        ("commands.get", {"aiohttp", "pydantic", "rich", "yaml", "zmq"}),
    ],
)
def test_what_starts_loads_nothing_that_only_others_need(module: str, needless: set[str]) -> None:
    code = f"import sys, epochal.cli.{module}; print(*{needless} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout == "\n"


@pytest.mark.parametrize("arguments", [[], ["-n", "demo"], ["-o", "json"], ["demo/none"], ["--help"]])
def test_a_whole_list_loads_nothing_that_only_others_need(catalog: str, arguments: list[str]) -> None:
    """Each would be a tenth to a third of its processor time."""
    code = f"""
import sys
from epochal.cli import main
sys.argv = ["epochal", "get", "streams", "--catalog", {catalog!r}, *{arguments}]
try:
    main()
finally:
    needless = {{"epochal.protocol.messages", "importlib.metadata", "pydantic", "rich", "yaml", "zmq"}}
    print(*needless & sys.modules.keys(), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.stderr.splitlines()[-1] == "", result.stderr


def test_an_unreachable_catalog_is_status_4(epochal, unused_url: str) -> None:
    result = epochal("get", "streams", "--catalog", unused_url, "--timeout", "0.2")
    assert (result.status, result.out) == (4, "")
    waiting, error = result.err.splitlines()
    assert waiting == f"waiting up to 0.2 s for the catalog at {unused_url} (connection refused) ..."
    assert error.startswith(f"error: no catalog answers at {unused_url} (connection refused; tried for 0.2 s)")
    assert "epochal up" in error


@pytest.fixture
def unused_url(unused_tcp_port: int) -> str:
    return f"http://127.0.0.1:{unused_tcp_port}"


def test_a_missing_file_is_reported(epochal) -> None:
    result = epochal("apply", "-f", "/no/such/file")
    assert (result.status, result.err) == (2, "error: /no/such/file: No such file or directory\n")


def test_a_closed_pipe_is_no_noise() -> None:
    command = f"{console_script('epochal')} --help | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=PATIENCE, check=False)
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EpochalError("x"), 1),
        (ValueError("x"), 1),
        (StreamComplete("x"), 1),
        (ManifestError("x"), 2),
        (TimeShapeError("x"), 2),
        (StreamNotFound("x"), 3),
        (NoPublisher("x"), 4),
        (CatalogUnavailable("x"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_status(error: BaseException, status: int) -> None:
    assert status_of(error) == status


def test_an_error_says_what_to_do() -> None:
    assert describe(NoPublisher("no publisher for segment 0")) == (
        "error: no publisher for segment 0\n"
        "what to do: try again soon; `epochal describe stream NAME` shows which segment has none"
    )
    assert "EPOCHAL_DEBUG=1" in describe(ZeroDivisionError("division by zero"))
