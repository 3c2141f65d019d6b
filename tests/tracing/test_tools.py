"""The collector and Zipkin themselves: what tests with traces may count on."""

import json
import secrets
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.programs import started_at
from tests.patience import PATIENCE
from tests.tracing.tools import Span, TracingTools, tracing_tools


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracingTools]:
    with tracing_tools(tmp_path_factory.mktemp("tracing")) as tools:
        yield tools


def send(tools: TracingTools, *spans: Span) -> None:
    """Send spans as OTLP over HTTP, in its JSON form."""
    attributes = [{"key": "service.name", "value": {"stringValue": "spark"}}]
    resource = {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}
    post(f"{tools.endpoint}/v1/traces", {"resourceSpans": [resource]})


def post(url: str, body: Any) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert answer.status == 200


def span(trace: str, own: str, parent: str, name: str, kind: int) -> Span:
    now = time.time_ns()
    times = {"startTimeUnixNano": str(now), "endTimeUnixNano": str(now + 1_000_000)}
    return {"traceId": trace, "spanId": own, "parentSpanId": parent, "name": name, "kind": kind, **times}


@pytest.mark.long
def test_what_is_sent_as_otlp_is_found_in_zipkin(tools: TracingTools):
    trace, root, child = secrets.token_hex(16), secrets.token_hex(8), secrets.token_hex(8)
    assert tools.trace(trace) == []
    send(tools, span(trace, root, "", "batch 17", 1), span(trace, child, root, "send demo/flights", 4))
    found = {each["name"]: each for each in tools.await_spans(trace, {"batch 17", "send demo/flights"})}
    assert "parentId" not in found["batch 17"]
    assert (found["send demo/flights"]["parentId"], found["send demo/flights"]["kind"]) == (root, "PRODUCER")
    assert tools.services() == ["spark"]


@pytest.mark.long
def test_a_span_that_never_comes_is_not_found(tools: TracingTools):
    trace = secrets.token_hex(16)
    send(tools, span(trace, secrets.token_hex(8), "", "batch 17", 1))
    with pytest.raises(TimeoutError):
        tools.await_spans(trace, {"batch 17": 2}, timeout=1)


@pytest.mark.long
def test_metrics_are_taken_at_the_same_address(tools: TracingTools):
    sample = {"asInt": "1", "timeUnixNano": str(time.time_ns())}
    metric = {"name": "m", "gauge": {"dataPoints": [sample]}}
    post(f"{tools.endpoint}/v1/metrics", {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})


@pytest.mark.long
def test_there_is_a_page_to_look_at(tools: TracingTools):
    with urllib.request.urlopen(tools.trace_url.format(trace_id="0" * 32), timeout=PATIENCE) as page:
        assert "zipkin" in page.read().decode().lower()


@pytest.mark.long
def test_nothing_is_left_of_them(tmp_path: Path):
    with tracing_tools(tmp_path) as tools:
        pids = [program.pid for program in tools.programs]
        assert [pid for pid in pids if started_at(pid) is None] == []
    assert [pid for pid in pids if started_at(pid) is not None] == []
