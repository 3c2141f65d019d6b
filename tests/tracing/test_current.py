"""The trace that is current where a batch is appended: read on a short way, which must lead where the API's leads."""

from contextvars import ContextVar

import pytest
from opentelemetry import trace

from epochal.client import tracing
from epochal.client.tracing import current_trace


@pytest.fixture(params=["the variable", "the API"])
def way(request, monkeypatch):
    monkeypatch.setattr(tracing, "_context", tracing._Api() if request.param == "the API" else None)
    monkeypatch.setattr(tracing, "_last", (None, None))


@pytest.mark.usefixtures("way")
def test_it_is_that_of_the_current_span(spans):
    assert current_trace() is None
    with spans.tracer.start_as_current_span("outer") as outer:
        for _ in range(2):
            found = current_trace()
            assert found is not None
            assert int.from_bytes(found[0][:16], "big") == outer.get_span_context().trace_id
        with spans.tracer.start_as_current_span("inner") as inner:
            assert current_trace() == tracing._trace_of(inner.get_span_context())
        assert current_trace() == found
    assert current_trace() is None
    with trace.use_span(trace.INVALID_SPAN):
        assert current_trace() is None


def test_the_variable_is_where_it_was_when_this_was_locked():
    """Where it is no more, appends are slower and nothing else: then this test says so."""
    assert isinstance(tracing._found_context(), ContextVar)


def test_another_kind_of_context_is_asked_by_the_api(monkeypatch):
    monkeypatch.setattr("opentelemetry.context._RUNTIME_CONTEXT", object())
    assert isinstance(tracing._found_context(), tracing._Api)
