"""The running catalog against the document that it serves, with what schemathesis makes up from that document."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from tests.patience import PATIENCE
from tests.service.documented import findings

SECONDS = 40
FEW = 2
"""Examples of each operation in the short run."""
_MORE_THAN_A_SCHEMA_SAYS = (
    "apply_stream",  # a manifest has rules between its fields
    "open_session", "forget_writer", "release_writer", "register_publisher", "subscribe",  # printable characters
    "register_relay",  # the same
    "list_streams", "list_segments", "list_writers", "list_publishers", "list_subscriptions",
    "list_stream_subscriptions", "list_relays", "list_stream_relays",  # `after` is what an earlier page gave
)  # fmt: skip
"""Where also what fits the document can be refused with 422; everywhere else it must not be."""
CONFIG: dict[str, Any] = {
    "seed": 7,
    "max-time": SECONDS,
    "max-stream-events": 1,
    "continue-on-failure": True,
    "suppress-health-check": ["all"],
    "request-timeout": 20,
    "cache": {"enabled": False},
    "generation": {"no-shrink": True, "max-examples": 15, "database": "none"},
    "checks": {
        # $catalog is a conflict; a `since` of the future too; too long a list can be too large a body
        "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "409", "410", "413", "422"]},
        "positive_data_acceptance": {"expected-statuses": ["2xx", "304", "404", "409", "410", "503"]},
    },
    "operations": [
        {
            "include-operation-id": list(_MORE_THAN_A_SCHEMA_SAYS),
            "checks": {"positive_data_acceptance": {"enabled": False}},
        },
        {
            "include-operation-id": ["lookup"],  # 503 while a segment has no publisher
            "checks": {
                "positive_data_acceptance": {"enabled": False},  # a time shape is nested, a schema is JSON in a text
                "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
            },
        },
    ],
}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[str]:
    """The url of a catalog process; lookups wait for no longer than the test has time."""
    command = [sys.executable, "-m", "epochal_catalog", "serve", "--port", "0", "--data", str(tmp_path)]
    env = {**os.environ, "EPOCHAL_CATALOG_MAX_WAIT": "0.05", "EPOCHAL_CATALOG_WATCH_HEARTBEAT": "0.05"}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env) as process,
    ):
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        assert word == "ready"
        yield url
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


_REPORT = {"lower": [3], "writers": ["w"], "number": 0, "horizon": [3, 4], "final": True}


class Real:
    """A stream with all that hangs on it, put in the place of made-up names so that requests get beyond 404."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = 0

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)) as answer:
            return json.loads(answer.read())

    def make(self) -> None:
        self._count += 1
        self.name = f"s{self._count}"
        manifest = {
            "apiVersion": "epochal.dev/v1alpha1", "kind": "Stream",
            "metadata": {"namespace": "real", "name": self.name},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
        }  # fmt: skip
        self.uid = self.ask("PUT", f"/v1/streams/real/{self.name}", manifest)["uid"]
        addresses = {"events": "tcp://h:1", "requests": "tcp://h:2", "ingest": "tcp://h:3"}
        body = {"publisher": "p", "instance": f"i{self._count}", "stream": f"real/{self.name}", "uid": self.uid}
        self.publisher = self.ask("POST", "/v1/publishers", {**body, "segments": ["0"], "addresses": addresses})
        path = f"/v1/streams/real/{self.name}"
        self.subscription = self.ask("POST", f"{path}/subscriptions", {"subscriber": "s", "uid": self.uid})
        self.ask("POST", f"{path}/writers/w/sessions")
        waits = {"time": 3, "kind": "lost", "writer": "w", "seconds": 1.0, "silent": 2.0}
        report = {"incarnation": self.publisher["segments"][0]["incarnation"], "holders": [waits]}
        self.ask("PUT", "/v1/publishers/p", {"token": self.publisher["token"], "segments": {"0": report}})

    def put(self, operation: str, case: Any) -> None:
        """Aim a request that fits the document at what is there."""
        reals: dict[str, Any] = {
            "namespace": "real", "name": self.name, "segment": "0", "publisher": "p",
            "subscription": self.subscription["id"], "writer": "w",
        }  # fmt: skip
        for name in (case.path_parameters or {}).keys() & reals.keys():
            case.path_parameters[name] = reals[name]
        token = self.subscription["token"] if "subscri" in operation else self.publisher["token"]
        if "token" in (case.query or {}):
            case.query["token"] = token
        incarnation = self.publisher["segments"][0]["incarnation"]
        if isinstance(case.body, dict):
            known = {"token": token, "uid": self.uid, "publisher": "p", "incarnation": incarnation}
            case.body |= {key: value for key, value in known.items() if key in case.body}
            if "segments" in case.body:
                case.body["segments"] = (
                    ["0"] if isinstance(case.body["segments"], list) else {"0": {**_REPORT, "incarnation": incarnation}}
                )
            if "stream" in case.body:
                case.body["stream"] = f"real/{self.name}"
            if operation == "renew_subscription" and case.body.get("lower") is not None:
                case.body["lower"] = [3]


def run(url: str, config: dict[str, Any], real: Real | None = None) -> tuple[list[str], "Counter[tuple[str, int]]"]:
    """Every finding in words, and how often each operation was answered with each status."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=SchemathesisConfig.from_dict(config))
    if real is not None:

        @schema.hook
        def map_case(_context: Any, case: Any) -> Any:
            if case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE:
                real.make()
                real.put(case.operation.definition.raw["operationId"], case)
            return case

    return findings(schema)


def test_some_requests_are_answered_as_the_document_says(catalog: str) -> None:
    """The same ones in each run, however fast the machine is; the long tests look for others."""
    config = {
        **{name: value for name, value in CONFIG.items() if name != "max-time"},
        "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": False}},
        "generation": {**CONFIG["generation"], "max-examples": FEW},
    }
    found, answers = run(catalog, config)
    assert not found, "\n\n".join(found[:5])
    assert len({operation for operation, _ in answers}) > 15
    assert {status for _, status in answers} >= {200, 404, 422}


@pytest.mark.long
def test_whatever_is_sent_is_answered_as_the_document_says(catalog: str) -> None:
    found, answers = run(catalog, CONFIG)
    print(sorted(answers.items()))
    assert not found, "\n\n".join(found[:5])


@pytest.mark.long
def test_what_fits_the_document_is_answered_as_it_says_where_there_is_something(catalog: str) -> None:
    phases = {"stateful": {"enabled": False}, "coverage": {"enabled": False}}
    config = {
        **CONFIG,
        "phases": phases,
        "max-time": SECONDS // 2,
        "generation": {**CONFIG["generation"], "mode": "positive"},
    }
    found, answers = run(catalog, config, Real(catalog))
    print(sorted(answers.items()))
    assert not found, "\n\n".join(found[:5])
