"""The HTTP sides of a publisher and a relay against the documents that they serve, with what schemathesis makes up."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from tests.publisher.conftest import until
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
        # 403: what is no address is no allowed callback either; 421: a `Host` is seldom made up, and is none of ours
        "negative_data_rejection": {
            "expected-statuses": ["400", "403", "404", "405", "406", "410", "413", "421", "422"]
        },
        # a position that is ahead, or too old; a callback that is allowed nowhere; an id that was used
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "403", "404", "406", "409", "410", "421", "422", "503"]
        },
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
    },
}
POSITIVE: dict[str, Any] = {
    **CONFIG,
    "max-time": SECONDS // 2,
    "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": False}},
    "generation": {**CONFIG["generation"], "mode": "positive"},
}
RELAY_SECONDS = 12
TURNS = 5
"""A busy machine makes up fewer requests in the same time; so it is given twice the time, and twice that."""


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


@pytest.fixture
def relay(start: Any, wires: Any) -> Iterator[Any]:
    """A relay of a stream with an epoch that is complete and one that is not."""
    stream, process = start(payload={"encoding": "json"})
    writer = wires.writer(process, stream)
    writer.open()
    writer.acked(0, b"[1]")
    writer.advance(1)
    writer.acked(1, b"[2]")
    relay = stream.relay(max_wait=0.05, sse_heartbeat=0.05, frontier_interval=0.05)
    yield relay
    try:
        assert relay.popen.poll() is None
        assert relay.get("/readyz")[0] == 200
        assert "Traceback" not in relay.log.read_text()
        until(
            lambda: (
                relay.metric("http_readers", service="relay") == relay.metric("http_catch_ups", service="relay") == 0
            )
        )
    finally:
        relay.stop()


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


def from_some_place(_context: Any, case: Any) -> Any:
    """A hook that has requests which fit the relay's document begin where there is something, all but a few."""
    if case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE and case.path == "/v1/epochs":
        case.headers.pop("Last-Event-ID", None)
        case.query["since"] = ("start", "time:0", "now")[len(str(case.query)) % 3]
    return case


def run(
    url: str, config: dict[str, Any], map_case: Callable[[Any, Any], Any] | None = None
) -> tuple[list[str], "Counter[tuple[str, int]]"]:
    """Every finding in words, and how often each operation was answered with each status."""
    schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", config=SchemathesisConfig.from_dict(config))
    if map_case is not None:
        schema.hook("map_case")(map_case)
    return findings(schema)


def run_until(
    seen: Callable[["Counter[tuple[str, int]]"], bool], url: str, config: dict[str, Any],
    map_case: Callable[[Any, Any], Any] | None = None,
) -> "Counter[tuple[str, int]]":  # fmt: skip
    """`run`, without a finding, and for longer each time until the answers are those that must be `seen`."""
    for turn in range(TURNS):
        found, answers = run(url, {**config, "max-time": config["max-time"] * 2**turn}, map_case)
        print(sorted(answers.items()))
        assert not found, "\n\n".join(found[:5])
        if seen(answers):
            break
    return answers


@pytest.mark.long
def test_whatever_is_sent_is_answered_as_the_document_says(publisher: Any) -> None:
    found, answers = run(publisher.addresses["http"], CONFIG)
    print(sorted(answers.items()))
    assert not found, "\n\n".join(found[:5])


@pytest.mark.long
def test_what_fits_the_document_is_answered_as_it_says_where_there_is_something(publisher: Any) -> None:
    url, good = publisher.addresses["http"], {200, 201, 204}
    answers = run_until(lambda seen: good <= {status for _, status in seen}, url, POSITIVE, aimed(url))
    assert good <= {status for _, status in answers}, "the good answers were seen too"


@pytest.mark.long
def test_whatever_is_sent_to_a_relay_is_answered_as_its_document_says(relay: Any) -> None:
    expected = {("GET /v1/epochs", status) for status in (200, 413, 422)}
    config = {**CONFIG, "max-time": RELAY_SECONDS}
    assert expected <= run_until(lambda seen: expected <= seen.keys(), relay.addresses["http"], config).keys()


@pytest.mark.long
@pytest.mark.rule("F18")
def test_what_fits_the_document_of_a_relay_is_answered_with_epochs(relay: Any) -> None:
    read = ("GET /v1/epochs", 200)
    config = {**POSITIVE, "max-time": RELAY_SECONDS}
    assert run_until(lambda seen: seen[read] > 5, relay.addresses["http"], config, from_some_place)[read] > 5
