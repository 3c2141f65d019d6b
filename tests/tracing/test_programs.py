"""Programs with a wrong environment, and what collectors cost the workers of Spark."""

import asyncio
import contextlib
import os
import sys

import pytest
from tests.patience import PATIENCE
from tests.tracing.receiver import receiving, silent

from epochal.local.child import console_script

GRPC = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
SAID = (
    "traces and metrics cannot be sent as the environment asks\n"
    "  OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not spoken here; "
    "write http/protobuf, and the collector's port for it, mostly 4318\n"
)


async def run(*command: str, **environment: str) -> tuple[int, str, str]:
    """One program to its end: status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.parametrize(("program", "command"), [("epochal-catalog", "serve"), ("epochal-operator", "run")])
async def test_a_service_does_not_start_with_a_protocol_that_is_not_spoken(program: str, command: str):
    """All of them begin by `epochal.service.process.run`."""
    status, out, err = await run(console_script(program), command, **GRPC)
    assert (status, out, err) == (1, "", f"{program}: {SAID}")


async def test_a_driver_refuses_it_and_a_worker_only_says_so():
    driver = 'from epochal_spark.tracing import Batches; Batches("demo/flights", "q")'
    status, _, err = await run(sys.executable, "-c", driver, **GRPC)
    assert status == 1
    assert err.endswith(f"epochal.errors.ConfigError: {SAID}")
    worker = """
from epochal_spark.tracing import Task, flush_task, sending
for partition in range(2):
    with sending("demo/flights", Task("q", "r", 0, partition, 0), None) as made:
        made.records = 1
    flush_task()
print("done")
"""
    assert await run(sys.executable, "-c", worker, **GRPC) == (0, "done\n", SAID)


TASKS = """
import os, time
from epochal_spark.tracing import Task, flush_task, sending
took = []
for partition in range(6):
    began = time.monotonic()
    child = os.fork() if FRESH else 0
    if child == 0:
        with sending("demo/flights", Task("q", "r", 0, partition, 0), None) as made:
            made.records = 1
        flush_task()
        if FRESH:
            os._exit(0)
    else:
        os.waitpid(child, 0)
    took.append(time.monotonic() - began)
print(*took, flush=True)
os._exit(0)  # as a worker that Spark ends: nothing is sent any more
"""


@pytest.mark.parametrize("fresh", [False, True], ids=["reused", "fresh"])
async def test_a_task_that_has_ended_has_sent_its_span(fresh: bool):
    async with receiving() as received:
        status, _, err = await run(
            sys.executable, "-c", TASKS.replace("FRESH", str(fresh)), OTEL_EXPORTER_OTLP_ENDPOINT=received.url
        )
        assert (status, err) == (0, "")
        sent = await received.until("send demo/flights", 6)
    assert len({span.trace_id for span in sent}) == 1
    assert len({span.span_id for span in sent}) == 6


async def test_a_collector_that_never_answers_costs_a_worker_one_flush_and_not_each_task():
    async with silent(None) as (url, asked):
        status, out, err = await run(
            sys.executable, "-c", TASKS.replace("FRESH", "False"), OTEL_EXPORTER_OTLP_ENDPOINT=url
        )
    assert status == 0
    assert len(out.split()) == 6
    assert len(asked) == 1, "one waited for a flush, and after it nothing is tried"
    assert err.count("traces and metrics are not sent") == 1


async def test_a_task_waits_for_a_slow_collector_as_long_as_the_environment_says():
    """Longer than the 2 s that are usual."""
    one = TASKS.replace("FRESH", "True").replace("range(6)", "range(1)")
    async with silent(2.5) as (url, asked):
        status, _, err = await run(
            sys.executable, "-c", one, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_TIMEOUT="60"
        )
    assert (status, err) == (0, "")
    assert len(asked) >= 1
