"""A running publisher's HTTP side against the document that it serves, with what schemathesis makes up from it."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from tests.service.documented import findings

SECONDS = 40
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}
CONFIG: dict[str, Any] = {
    "seed": 7,
    "max-time": SECONDS,
    "max-stream-events": 1,
    "continue-on-failure": True,
    "suppress-health-check": ["all"],
    "request-timeout": 20,
    "cache": {"enabled": False},
    "generation": {"no-shrink": True, "max-examples": 25, "database": "none"},
    "checks": {
        # 403: what is no address is no allowed callback either
        "negative_data_rejection": {"expected-statuses": ["400", "403", "404", "405", "406", "410", "413", "422"]},
        # a position that is ahead, or too old; a callback that is allowed nowhere; an id that was used
        "positive_data_acceptance": {"expected-statuses": ["2xx", "403", "404", "406", "409", "410", "422", "503"]},
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
    },
}


@pytest.fixture
def publisher(start: Any, wires: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A publisher of a stream with some history, whose questions wait for no longer than the test has time."""
    for name, value in {
        "MAX_WAIT": "0.05", "SSE_HEARTBEAT": "0.05", "WEBHOOK_TARGETS": "127.0.0.0/8", "MAX_WEBHOOKS": "8",
        "MAX_BODY": "4096",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"EPOCHAL_PUBLISHER_{name}", value)
    stream, process = start({"data": tmp_path}, **STORED)
    writer = wires.writer(process, stream)
    writer.open()
    writer.acked(0, b"\x91\xc4\x01a", b"\x91\xc4\x01b")
    writer.advance(1)
    yield process
    assert process.popen.poll() is None
    assert process.get("/healthz")[0] == 200
    assert "Traceback" not in process.log.read_text()
    assert process.metric("http_readers") == 0


def aimed(url: str) -> Callable[[Any, Any], Any]:
    """A hook that aims requests which fit the document at what is there."""
    numbers = count()

    def map_case(_context: Any, case: Any) -> Any:
        if case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE:
            if "segment" in (case.path_parameters or {}):
                case.path_parameters["segment"] = "0"
            if isinstance(case.body, dict) and "callback" in case.body:
                case.body |= {"callback": "http://127.0.0.1:9/hook", "subscription": f"s{next(numbers)}"}
        return case

    return map_case


def run(url: str, config: dict[str, Any], *, aim: bool) -> tuple[list[str], "Counter[tuple[str, int]]"]:
    """Every finding in words, and how often each operation was answered with each status."""
    schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", config=SchemathesisConfig.from_dict(config))
    if aim:
        schema.hook(aimed(url))
    return findings(schema)


@pytest.mark.long
def test_whatever_is_sent_is_answered_as_the_document_says(publisher: Any) -> None:
    found, answers = run(publisher.addresses["http"], CONFIG, aim=False)
    print(sorted(answers.items()))
    assert not found, "\n\n".join(found[:5])


@pytest.mark.long
def test_what_fits_the_document_is_answered_as_it_says_where_there_is_something(publisher: Any) -> None:
    phases = {"stateful": {"enabled": False}, "coverage": {"enabled": False}}
    generation = {**CONFIG["generation"], "mode": "positive"}
    config = {**CONFIG, "phases": phases, "max-time": SECONDS // 2, "generation": generation}
    found, answers = run(publisher.addresses["http"], config, aim=True)
    print(sorted(answers.items()))
    assert not found, "\n\n".join(found[:5])
    assert {200, 201, 204} <= {status for _, status in answers}, "the good answers were seen too"
