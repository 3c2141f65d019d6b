"""What only helps starts at once: libraries that serving needs are imported by the command that serves."""

import subprocess
import sys

import pytest
from tests.patience import PATIENCE

from epochal.local.child import console_script

HEAVY = {
    "aiohttp",
    "alembic",
    "opentelemetry",
    "prometheus_client",
    "pydantic_settings",
    "pyarrow",
    "sqlalchemy",
    "zmq",
}
"""Packages that take most of the processor time until a service is ready."""


def imported(*command: str) -> set[str]:
    """The modules that a Python program imports, by what the interpreter says of it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "command",
    [
        ["epochal", "--help"],
        ["epochal-catalog", "--help"],
        ["epochal-publisher", "--help"],
        ["epochal-publisher", "serve", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_no_heavy_library(command: list[str]) -> None:
    program, *asked = command
    found = imported(console_script(program), *asked)
    assert "typer" in found
    assert sorted(HEAVY & found) == []


def test_a_publisher_imports_neither_relay_nor_sidecar() -> None:
    found = imported("-c", "import epochal_publisher.serving")
    assert "epochal_publisher.publisher" in found
    assert not [name for name in found if name.startswith(("epochal_publisher.relay", "epochal_publisher.sidecar"))]
