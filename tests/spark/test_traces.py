"""A real job and a real OTLP receiver: the exact tree of spans, and what a job does when nothing receives them."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.sidecar.conftest import Process
from tests.tracing.receiver import Received, attributes, receiving, silent

import epochal
from epochal.otel.span_processor import REST

pytestmark = pytest.mark.java

JOB = Path(__file__).with_name("job.py")
PROCESSES = 7
"""The driver, and at most a worker for each of six tries: Spark ends that of a task that fails."""


async def run(catalog: str, stream: str, folder: Path, endpoint: str, *more: str) -> str:
    """Publish three files, one a batch, by tasks that each fail once within the sink; returns what the job logged."""
    (folder / "input").mkdir()
    schema = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("part", pa.int32())])
    for part in range(3):
        path = folder / "input" / f"part{part}.parquet"
        pq.write_table(pa.Table.from_pylist([{"t": part, "n": n, "part": part} for n in (1, 2)], schema=schema), path)
        os.utime(path, (part + 1, part + 1))  # Spark takes the oldest first
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(JOB), "--catalog", catalog, "--stream", stream, "--input", str(folder / "input"),
        "--checkpoint", str(folder / "checkpoint"), "--fault", "sink", "--per-batch", "1", *more,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE * 2):
            out, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, out.decode()[-6000:]
    return out.decode()


async def published(catalog: str, stream: str) -> dict[int, tuple[int, set[bytes | None]]]:
    """Records of each epoch, and the traces of its batches."""
    async with epochal.connect(catalog) as client, client.subscribe(stream, since="start") as sub:
        async with asyncio.timeout(PATIENCE * 2):
            epochs = [epoch async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch)]
    return {epoch.time: (epoch.count, {batch.trace for batch in epoch.batches}) for epoch in epochs}


@pytest.mark.parametrize(
    ("workers", "way"), [("reused", "sidecar"), pytest.param("fresh", "direct", marks=pytest.mark.long)]
)
async def test_the_spans_of_three_batches_with_retries(
    workers: str,
    way: str,
    catalog: str,
    declare: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")  # this process, which receives, may get no processor
    stream = declare(segments=1)
    send, forward = f"send {stream}", f"forward {stream}"
    async with receiving() as received, contextlib.AsyncExitStack() as stack:
        if way == "sidecar":
            await stack.enter_async_context(sidecar(catalog, received.url, monkeypatch))
        await run(catalog, stream, tmp_path, received.url, *(["--fresh-workers"] if workers == "fresh" else []))
        await received.until("commit", 3)
        await received.until(send, 6)
        if way == "sidecar":
            await received.until(forward, 6)
        sent = await received.until_metric("messaging.client.sent.messages")
    failed, done = (send, 0, "RuntimeError"), (send, 1, None)
    tree = [failed, done, ("commit", None, None)]
    assert trees(received) == [("batch 0", tree), ("batch 1", tree), ("batch 2", tree)]
    assert {attributes(span)["epochal.way"] for span in received.named(send)} == {way}
    sends = {span.span_id for span in received.named(send)}
    assert {span.parent_span_id for span in received.named(forward)} == (sends if way == "sidecar" else set())
    assert len(received.spans) == (18 if way == "sidecar" else 12), "and no other"
    assert attributes(sent.sum.data_points[0])["messaging.destination.name"] == stream
    made = await published(catalog, stream)
    for root in (span for span in received.spans if not span.parent_span_id):
        batch = attributes(root)["epochal.batch"]
        records, traces = made.pop(batch)
        tries = {
            span.trace_id + span.span_id + b"\x01" for span in received.named(send) if span.trace_id == root.trace_id
        }
        assert (records, len(traces)) == (2, 1), f"batch {batch}"
        assert traces < tries, "the trace of the try that came first"
    assert not made


@contextlib.asynccontextmanager
async def sidecar(catalog: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A real one, which sends its spans too, and which tasks must use."""
    with tempfile.TemporaryDirectory(prefix="ep-") as short:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        process = await Process.start(f"ipc://{short}/s", catalog, Path(short))
        monkeypatch.setenv("EPOCHAL_SIDECAR", process.address)
        monkeypatch.setenv("EPOCHAL_SIDECAR_REQUIRED", "true")
        monkeypatch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "30")
        try:
            yield
        finally:
            await process.stop()


def trees(received: Received) -> list[tuple[str, list[tuple[str, int | None, str | None]]]]:
    """Each root with its children: name, attempt, error; in the order of their beginnings."""
    found = []
    spans = sorted(received.spans, key=lambda span: span.start_time_unix_nano)
    for root in (span for span in spans if not span.parent_span_id):
        below = [span for span in spans if span.parent_span_id == root.span_id and span.trace_id == root.trace_id]
        told = [(span.name, attributes(span)) for span in below]
        found.append((root.name, [(name, a.get("epochal.attempt"), a.get("error.type")) for name, a in told]))
    return found


@pytest.mark.long
@pytest.mark.parametrize("collector", ["away", "black hole", "slow"])
async def test_a_job_goes_on_whatever_becomes_of_its_spans(
    collector: str,
    catalog: str,
    declare: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if collector == "slow":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
    stream = declare(segments=1)
    async with silent(0.5 if collector == "slow" else None) as (url, asked):
        endpoint = f"http://127.0.0.1:{free_port()}" if collector == "away" else url
        log = await run(catalog, stream, tmp_path, endpoint)
    assert {time: count for time, (count, _) in (await published(catalog, stream)).items()} == {0: 2, 1: 2, 2: 2}
    complaints = log.count("traces and metrics are not sent")
    assert complaints <= PROCESSES, "one line a process"
    assert (complaints > 0) == (collector != "slow")
    if collector == "black hole":
        rests = 1 + (max(asked, default=0.0) - min(asked, default=0.0)) // REST
        assert len(asked) <= rests * PROCESSES, "after a failure none is tried for a while"
