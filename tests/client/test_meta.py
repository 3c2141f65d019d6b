"""What a batch says of itself beside its records: it comes to every reader as it was given, and is never judged."""

import asyncio
import json
import time
import urllib.request
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from tests.patience import PATIENCE

import epochal
from epochal.client.tracing import current_trace, traceparent
from epochal.errors import UsageError

HEADERS = {b"source": b"tower", b"\xff": b""}
IDS = bytes.fromhex("0af7651916cd43dd8448eb211c80319cb7ad6b7169203331")


def span(flags: int, state: list[tuple[str, str]]) -> NonRecordingSpan:
    """What is current inside of a span with known ids."""
    ids = int.from_bytes(IDS[:16], "big"), int.from_bytes(IDS[16:], "big")
    return NonRecordingSpan(
        SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(flags), trace_state=TraceState(state))
    )


async def batches(client: epochal.Client, stream: str, **options: Any) -> list[epochal.Data]:
    """All batches of a complete stream, in the order of their first record."""
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start", **options) as sub:
        found = [batch async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch) for batch in epoch.batches]
    return sorted(found, key=lambda batch: int(batch.records()[0]))


@pytest.mark.parametrize("linger", [0.0, 0.01], ids=["each alone", "gathered"])
@pytest.mark.rule("S34")
async def test_key_clock_headers_and_trace_come_with_the_batch(services: Any, linger: float) -> None:
    stream = await services.stream()
    before = time.time_ns() // 1_000_000
    async with epochal.connect(services.url) as client:
        async with client.writer(stream, linger=linger, clock=True) as writer:
            await writer.append(1, [1], key=b"JFK", headers=HEADERS)
            with trace.use_span(span(1, [("vendor", "7")])):
                await writer.append(1, [2])
            with trace.use_span(span(0, [])):
                writer.append_nowait(1, [3], key=b"k" * 1024)
            await writer.flush()
            writer.append_nowait(1, [4], headers={})
            await writer.finish()
        full, traced, unsampled, plain = await batches(client, stream)
        polled = await batches(client, stream, push=False, poll=0.05)
    assert (full.key, full.headers, full.trace) == (b"JFK", HEADERS, None)
    assert (traced.trace, traced.tracestate, traced.key) == (IDS + b"\x01", b"vendor=7", None)
    assert unsampled.trace == IDS + b"\x00"
    assert (unsampled.key, plain.key, plain.trace, plain.headers) == (b"k" * 1024, None, None, {})
    assert polled == [full, traced, unsampled, plain]
    for batch in (full, traced, unsampled, plain):
        assert batch.published is not None
        assert before <= batch.published <= time.time_ns() // 1_000_000


async def test_who_says_nothing_sends_nothing(services: Any) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            await writer.append(1, [1])
            await writer.finish()
        (batch,) = await batches(client, stream)
    assert (batch.key, batch.published, batch.headers, batch.trace, batch.tracestate) == (None, None, {}, None, b"")


async def test_http_reports_it_too(services: Any) -> None:
    stream = await services.stream(segments=1)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            with trace.use_span(span(1, [("vendor", "7")])):
                await writer.append(1, [1], key=b"JFK", headers={b"source": b"tower"})
            await writer.append(1, [2], key=b"\xff", headers=HEADERS)
            await writer.finish()
        info = await client.catalog.lookup(*stream.split("/"))
    publisher = info.segments[0].publisher
    assert publisher is not None
    url = f"{publisher.addresses['http']}/v1/segments/0/events"
    told = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE).read())
    one, two = [line for line in map(json.loads, told.splitlines()) if line["kind"] == "data"]
    assert (one["key"], one["headers"], one["tracestate"]) == ("JFK", {"source": "tower"}, "vendor=7")
    assert one["traceparent"] == traceparent(IDS + b"\x01") == f"00-{IDS[:16].hex()}-{IDS[16:].hex()}-01"
    assert (two["key"], two["key_encoding"], two["headers_encoding"]) == ("/w==", "base64", "base64")
    assert two["headers"] == {"c291cmNl": "dG93ZXI=", "/w==": ""}
    assert "traceparent" not in two


async def test_wrong_headers_are_refused_and_nothing_is_sent(services: Any) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            wrongs: list[tuple[Any, str]] = [
                ([b"a"], "mapping"), ({"a": b"b"}, "bytes"), ({b"a": 1}, "bytes"), ({b"a": b"v" * 4096}, "at most 40"),
            ]  # fmt: skip
            for wrong, said in wrongs:
                with pytest.raises(UsageError, match=said):
                    await writer.append(1, [1], headers=wrong)
                with pytest.raises(UsageError, match=said):
                    writer.append_nowait(1, [1], headers=wrong)
            await writer.append(1, [2], headers={b"a": b"v" * 4095})
            await writer.finish()
        (batch,) = await batches(client, stream)
    assert batch.headers == {b"a": b"v" * 4095}


def test_a_tracestate_that_is_too_long_is_left_out() -> None:
    with trace.use_span(span(1, [(f"v{n}", "x" * 200) for n in range(3)])):
        assert current_trace() == (IDS + b"\x01", b"")
    assert current_trace() is None
