"""The command, its settings, and that a folder called operator hides nothing."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE

from epochal.errors import ConfigError
from epochal.resources.definitions import all_crds
from epochal_operator import __main__ as program
from epochal_operator.handlers import WatchEnded
from epochal_operator.lease import LeaseLost
from epochal_operator.settings import OperatorSettings
from epochal_operator.telemetry import JsonLines

ROOT = Path(__file__).parents[2]


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment}
    return subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_definition_is_printed() -> None:
    assert run(sys.executable, "-m", "epochal_operator", "crd").stdout == all_crds()


def test_python_still_has_its_own_operator() -> None:
    said = run(sys.executable, "-c", "import operator; print(operator.itemgetter, operator.__file__)", PYTHONPATH="")
    assert str(ROOT) not in said.stdout
    assert "itemgetter" in said.stdout


def test_settings_are_read_with_every_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_OPERATOR_CATALOG", "epochal-catalog:8700")
    monkeypatch.setenv("EPOCHAL_OPERATOR_WORKERS", "0")
    with pytest.raises(ConfigError) as caught:
        OperatorSettings.read()
    assert {problem.path for problem in caught.value.problems} == {"catalog", "image", "workers"}


def test_lists_are_given_by_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_OPERATOR_NAMESPACES", "a, b,,a")
    monkeypatch.setenv("EPOCHAL_OPERATOR_PULL_SECRETS", "")
    settings = OperatorSettings.read(catalog="http://c:1", image="i")
    assert (settings.namespaces, settings.pull_secrets) == (("a", "b"), ())
    assert settings.cluster.image == "i"


def test_without_a_cluster_it_says_so_in_a_line(tmp_path: Path) -> None:
    given = {"EPOCHAL_OPERATOR_CATALOG": "http://c:1", "EPOCHAL_OPERATOR_IMAGE": "i"}
    ended = run(sys.executable, "-m", "epochal_operator", "run", **given, KUBECONFIG=str(tmp_path / "none"))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"epochal-operator: no kubeconfig: there is no {tmp_path / 'none'}; ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("given", ["warning", "debug", None])
async def test_the_level_of_the_log_is_as_set(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    before, found = logging.getLogger().level, []

    async def operate(*_: object) -> int:
        found.append(logging.getLogger().level)
        return 0

    monkeypatch.setattr(program, "operate", operate)
    kopf = logging.getLogger("kopf").level
    try:
        await program._run(asyncio.Event(), {"catalog": "http://c:1", "image": "i", "log_level": given})
    finally:
        logging.getLogger().setLevel(before)
        logging.getLogger("kopf").setLevel(kopf)
    assert found == [logging.getLevelName((given or "info").upper())]
    with pytest.raises(ConfigError, match="log_level"):
        OperatorSettings.read(catalog="http://c:1", image="i", log_level="loud")


@pytest.mark.parametrize(
    ("ended", "status"), [(WatchEnded("pods cannot be watched"), 4), (LeaseLost("another operator may have it"), 3)]
)
async def test_it_ends_with_its_watches_and_with_its_lease(
    ended: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.Event()

    async def wait(*_: object) -> None:
        await waiting.wait()

    async def fail(*_: object) -> None:
        raise ended

    parts: Any = SimpleNamespace(resync_forever=wait, sweep_forever=wait, work=wait, keep=wait, watch=fail)
    settings = OperatorSettings(catalog="http://c:1", image="i")
    assert await program._act(settings, parts, parts, parts, asyncio.Event()) == status
    assert caplog.messages == [f"stopping: {ended}"]


async def test_the_lease_is_released_before_the_tasks_of_kopf_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may take seconds, and a successor would wait for that."""
    ended: list[str] = []

    class Part:
        """Stands for every part, and notes its end."""

        access = check = None

        def __init__(self, *_: object) -> None:
            pass

        async def __aenter__(self) -> "Part":
            return self

        async def __aexit__(self, *_: object) -> None:
            ended.append("connection")

        async def acquire(self) -> None:
            pass

        async def release(self) -> None:
            ended.append("lease")

        async def end(self) -> None:
            ended.append("kopf")

        def close(self) -> None:
            pass

    async def act(*_: object) -> int:
        return 0

    for name in ("ThrottledApi", "Leadership", "Watches", "Web", "OperatorTelemetry", "catalog_client", "_controller"):
        monkeypatch.setattr(program, name, Part)
    monkeypatch.setattr(program, "_act", act)
    settings = OperatorSettings(catalog="http://c:1", image="i")
    assert await program.operate(settings, asyncio.Event(), lambda _: None) == 0
    assert ended[:2] == ["lease", "kopf"]
    assert set(ended[2:]) == {"connection"}, "the lease is released over a connection that is open"


def test_a_line_of_the_log_is_an_object() -> None:
    record = logging.LogRecord("epochal.operator", logging.WARNING, __file__, 1, "lost %s", ("ä",), None)
    told = json.loads(JsonLines().format(record))
    assert (told["level"], told["logger"], told["message"]) == ("warning", "epochal.operator", "lost ä")


def test_what_is_set_for_publishers_reaches_their_pods() -> None:
    given = {"catalog": "http://c:1", "image": "i"}
    drawn = OperatorSettings.read(**given).cluster
    assert (drawn.listen, drawn.fixed_user) == ("0.0.0.0", True)
    drawn = OperatorSettings.read(**given, publisher_host="::", fixed_user=False).cluster
    assert (drawn.listen, drawn.fixed_user) == ("::", False)


def test_more_environment_of_publishers_is_an_object_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"catalog": "http://c:1", "image": "i"}
    monkeypatch.setenv(
        "EPOCHAL_OPERATOR_PUBLISHER_ENV",
        '{"OTEL_TRACES_SAMPLER": "always_on", "A": "1,2=3", "EPOCHAL_RELAY_MAX_READERS": "9"}',
    )
    assert OperatorSettings.read(**given).cluster.publisher_env == (
        ("A", "1,2=3"),
        ("EPOCHAL_RELAY_MAX_READERS", "9"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
    )
    monkeypatch.setenv("EPOCHAL_OPERATOR_PUBLISHER_ENV", "")
    assert OperatorSettings.read(**given).cluster.publisher_env == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("A=1", "no JSON object of texts"),
        ("[1]", "no JSON object of texts"),
        ('["ab"]', "no JSON object of texts"),
        ('{"A": 1}', "no JSON object of texts"),
        ('{"a b": "1"}', "'a b' is no name of a variable"),
        ('{"EPOCHAL_PUBLISHER_STREAM": "a/b"}', "EPOCHAL_PUBLISHER_STREAM is set by each stream"),
        ('{"EPOCHAL_RELAY_STREAM": "a/b"}', "EPOCHAL_RELAY_STREAM is set by each relay"),
        ('{"EPOCHAL_RELAY_CORS_ORIGINS": "*"}', "EPOCHAL_RELAY_CORS_ORIGINS is set by each relay"),
        ('{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}', "'collector:4318' is no address of a collector"),
    ],
)
def test_wrong_environment_of_publishers_is_reported_at_the_start(
    given: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_OPERATOR_PUBLISHER_ENV", given)
    with pytest.raises(ConfigError) as caught:
        OperatorSettings.read(catalog="http://c:1", image="i")
    (problem,) = caught.value.problems
    assert problem.path == "publisher_env"
    assert told in problem.reason
    assert "set EPOCHAL_OPERATOR_PUBLISHER_ENV" in problem.hint
