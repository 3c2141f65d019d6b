"""`epochal trace`: which traces a time's batches were made in, and what is said where that is not the whole of it."""

import json
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import epochal
from epochal.cli.commands.trace import link_template

ONE, TWO = f"{0xA1:032x}", f"{0xB2:032x}"
URL = "http://127.0.0.1:9411/zipkin/traces/{trace}"


def within(trace_id: str, span: int = 7, *, sampled: bool = True) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return trace.use_span(NonRecordingSpan(SpanContext(int(trace_id, 16), span, False, flags)))


def publish(catalog: str, stream: str) -> None:
    """At 5 two traces and a batch of none, complete; at 6 one that is aborted; at 7 one that stays open."""
    with epochal.connect_blocking(catalog) as client, client.writer(stream, writer_id="w") as writer:
        with within(ONE, sampled=False):
            writer.append(5, ["a"])
        for span in (1, 2):
            with within(TWO, span):
                writer.append(5, ["b", "c"], key=b"k")
        writer.append(5, ["d"])
        with within(ONE):
            writer.append(6, ["e"])
        writer.abort(6)
        writer.advance(7)
        with within(TWO):
            writer.append(7, ["f"])
        writer.append(8, ["g"])


def test_the_traces_of_a_time_are_printed(run, declared, catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = declared(segments=2)
    publish(catalog, stream)
    shown = run("trace", stream, "--time", "5")
    assert [line.split()[:3] + line.split()[4:] for line in shown.out.splitlines()] == [
        ["TRACE", "BATCHES", "RECORDS", "SAMPLED"], [TWO, "2", "4", "yes"], [ONE, "1", "1", "no"],
    ]  # fmt: skip
    without = f"time 5 of {stream}: 1 of its 4 batches, with 1 records, have no trace: they were published outside of"
    assert shown.err == f"{without} any span\n"
    monkeypatch.setenv("EPOCHAL_TRACE_URL", URL)
    assert run("trace", stream, "-t", "5").out.splitlines()[1].endswith(f"  http://127.0.0.1:9411/zipkin/traces/{TWO}")
    found = json.loads(run("trace", stream, "-t", "5", "-o", "json").out)
    assert (found["stream"], found["time"], found["state"]) == (stream, 5, "complete")
    assert found["without_trace"] == {"batches": 1, "records": 1}
    first, second = found["traces"]
    assert {**first, "segments": len(first["segments"])} == {
        "trace": TWO, "batches": 2, "records": 4, "segments": 1, "sampled": True, "link": URL.replace("{trace}", TWO),
    }  # fmt: skip
    assert (second["trace"], second["sampled"]) == (ONE, False)


def test_what_is_not_the_whole_of_a_time_is_said(run, declared, catalog: str) -> None:
    stream = declared(segments=2)
    publish(catalog, stream)
    for time, state, said, traces in (
        ("6", "aborted", "was aborted", None),  # of which a segment may tell nothing
        ("7", "open", "not complete yet", [TWO]),
        ("8", "open", "1 of its 1 batches", []),
        ("9", "open", "has no batch", []),
        ("3", "complete", "has no batch", []),
    ):
        shown = run("trace", stream, "--time", time, "-o", "json")
        found = json.loads(shown.out)
        assert found["state"] == state, time
        assert traces in (None, [each["trace"] for each in found["traces"]])
        assert said in shown.err
        assert (shown.status, shown.err.startswith(f"time {time} of {stream}")) == (0, True)
    assert run("pub", stream, "--writer", "w", "--finish", "-q").status == 0
    assert json.loads(run("trace", stream, "-t", "7", "-o", "json").out)["state"] == "complete"


def test_times_are_those_of_the_stream(run, declared) -> None:
    stream = declared(shape="(int, int)", segments=1)
    assert run("pub", stream, "-t", "(5, 1)", "1", "--finish", "-q").status == 0
    assert f"time (5, 1) of {stream}: 1 of its 1 batches" in run("trace", stream, "--time", "(5, 1)").err
    wrong = run("trace", stream, "--time", "5")
    assert (wrong.status, wrong.out) == (2, "")
    assert wrong.err == "error: --time: '5' is no time; this stream's have the shape (int, int)\n"
    assert run("trace", "demo/none", "-t", "5").status == 3


@pytest.mark.parametrize(
    "template",
    [
        "http://h/traces",
        "h:9411/{trace}",
        "ftp://h/{trace}",
        "http://h/{id}",
        "http://h/{trace}?{x",
        "http://h:x/{trace}",
    ],
)
def test_a_malformed_template_is_one_error(epochal, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setenv("EPOCHAL_TRACE_URL", template)
    shown = epochal("trace", "demo/x", "--time", "5", "--catalog", "http://127.0.0.1:9", "--timeout", "0")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == (
        "error: traces cannot be linked as the environment asks\n"
        f"  EPOCHAL_TRACE_URL: {template!r} is no address with {{trace}} in it; "
        "write it as http://HOST:9411/zipkin/traces/{trace}\n"
    )


def test_an_empty_template_is_none() -> None:
    assert link_template({"EPOCHAL_TRACE_URL": " "}) is None
    assert link_template({"EPOCHAL_TRACE_URL": URL}) == URL
