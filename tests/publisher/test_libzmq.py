"""A libzmq with known holes is refused by all that would use it, before it opens a socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

import epochal
from epochal import connect_blocking
from epochal.cli import main
from epochal.errors import ConfigError
from epochal_publisher.__main__ import _until_stopped

TOO_OLD = "libzmq 4.3.4 is too old"


@pytest.fixture(autouse=True)
def old_libzmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    monkeypatch.setattr(zmq, "zmq_version", lambda: "4.3.4")


def publisher() -> None:
    asyncio.run(_until_stopped(asyncio.Event(), {}))


@pytest.mark.parametrize("start", [publisher, epochal.connect, connect_blocking])
def test_it_is_refused_at_the_start(start: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=TOO_OLD):
        start()


@pytest.mark.parametrize("command", ["pub demo/a x --time 1", "sub demo/a"])
def test_the_commands_that_need_it_say_so(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["epochal", *command.split(), "--catalog", "http://127.0.0.1:9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert TOO_OLD in capfd.readouterr().err


def test_spark_uses_it_through_the_client_alone() -> None:
    modules = (Path(__file__).parents[2] / "spark" / "epochal_spark").glob("*.py")
    assert not [module.name for module in modules if "import zmq" in module.read_text()]
