"""What the command line sends to a collector: spans of what it publishes and processes."""

import asyncio
import os
import sys
from collections.abc import Sequence

import pytest
from tests.patience import PATIENCE
from tests.tracing.receiver import attributes, receiving

from epochal.local.child import console_script


async def run(endpoint: str, *command: str) -> tuple[int, str, str]:
    """One command as a process of its own: OpenTelemetry is set up once a process."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def commands(catalog: str, stream: str) -> tuple[Sequence[str], Sequence[str]]:
    epochal = console_script("epochal")
    pub = [epochal, "pub", stream, "-t", "5", "--catalog", catalog, "-q"]
    return pub, [epochal, "sub", stream, "--since", "start", "--epochs", "--raw", "--catalog", catalog]


async def test_what_is_published_and_processed_is_one_trace(services) -> None:
    stream = await services.stream(segments=2)
    pub, sub = commands(services.url, stream)
    async with receiving() as received:
        assert await run(received.url, *pub, "1", "2", "3", "--finish") == (0, "", "")
        (send,) = await received.until(f"send {stream}")
        status, out, err = await run(received.url, *sub)
        assert (status, out.split()) == (0, ["1", "2", "3"]), err
        (process,) = await received.until(f"process {stream}")
        await received.until_metric("messaging.process.duration")
    assert (process.trace_id, process.parent_span_id) == (send.trace_id, send.span_id)
    assert not send.parent_span_id
    assert attributes(send) == {
        "messaging.system": "epochal",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": stream,
        "messaging.batch.message_count": 3,
        "epochal.way": "direct",
    }
    assert attributes(process)["messaging.batch.message_count"] == 3


async def test_with_wait_each_record_is_a_send_of_its_own(services) -> None:
    stream = await services.stream(segments=1)
    pub, _ = commands(services.url, stream)
    async with receiving() as received:
        assert await run(received.url, *pub, "1", "2", "--wait") == (0, "", "")
        first, second = await received.until(f"send {stream}", 2)
    assert first.trace_id != second.trace_id


FOLLOWER = "import sys; from examples.demo.follow import main; main(sys.argv[1:])"


@pytest.mark.parametrize("program", ["pub", "sub", "follower"])
async def test_a_wrong_endpoint_is_one_error(program: str, services) -> None:
    pub, sub = commands(services.url, "test/none")
    command = {"pub": [*pub, "1"], "sub": sub, "follower": [sys.executable, "-c", FOLLOWER, "early", "--stream", "a/b"]}
    status, out, err = await run("collector:4318", *command[program])
    assert (status, out) == (2, "")
    assert err == (
        "error: traces and metrics cannot be sent as the environment asks\n"
        "  OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' is no address of a collector; "
        "write http://HOST:4318, or https\n"
    )


async def test_a_collector_that_is_away_costs_a_word(services) -> None:
    stream = await services.stream(segments=1)
    pub, _ = commands(services.url, stream)
    status, out, err = await run("http://127.0.0.1:9", *pub, "1")
    assert (status, out) == (0, "")
    assert err.count("traces and metrics are not sent") == 1
    assert len(err.splitlines()) == 1
