"""What a program that has set metrics up is told of its sends; any other pays one look at a writer's opening."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import epochal
from epochal.client import metrics
from epochal.client.sidecar import sidecar
from epochal.errors import CapabilityError, WriterFenced


def points(meters: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The data points of each metric."""
    data = meters.get_metrics_data()
    if data is None:
        return {}
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_records_are_counted_and_awaited_appends_are_timed(meters, services, linger: float) -> None:
    stream = await services.stream(segments=1)
    async with epochal.connect(services.url) as client, client.writer(stream, linger=linger) as writer:
        await writer.append(1, [b"a", b"b"])
        writer.append_nowait(1, [b"c"])
        await writer.flush()
        await writer.advance(2)
        with pytest.raises(CapabilityError):
            await writer.append(1, [b"below"])
    found = points(meters)
    (sent,), (took,) = found["messaging.client.sent.messages"], found["messaging.client.operation.duration"]
    assert (sent.value, took.count) == (3, 1)
    told = {
        "messaging.system": "epochal",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": stream,
    }
    assert dict(sent.attributes) == dict(took.attributes) == told


async def test_an_append_that_fails_says_why(meters, services) -> None:
    stream = await services.stream(segments=1)
    async with epochal.connect(services.url) as client, client.writer(stream, writer_id="w") as writer:
        await writer.append(1, [b"a"])
        appending = asyncio.create_task(writer.append(1, [b"b"]))
        await asyncio.sleep(0)  # it is under way, and no answer can have come
        writer.session.fail(WriterFenced("another session"))
        with pytest.raises(WriterFenced):
            await appending
    durations = points(meters)["messaging.client.operation.duration"]
    assert sorted(point.attributes.get("error.type", "") for point in durations) == ["", "writer_fenced"]


async def test_doing_without_a_sidecar_is_counted(meters, services, monkeypatch, tmp_path) -> None:
    stream = await services.stream(segments=1)
    monkeypatch.setenv("EPOCHAL_SIDECAR", f"ipc://{tmp_path}/none.sock")
    metrics._fallbacks.cache_clear()
    async with epochal.connect(services.url) as client:
        for _ in range(2):
            async with client.writer(stream) as writer:
                assert writer.way == "direct"
    (count,) = points(meters)["epochal.client.sidecar.fallbacks"]
    assert count.value == 2
    metrics._fallbacks.cache_clear()
    sidecar._absent.clear()
    sidecar.fallbacks.clear()


def test_metrics_cost_nothing_where_no_provider_is_set() -> None:
    program = """
from epochal.client.metrics import Sends
import sys
assert Sends.of("a/b") is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import opentelemetry.metrics
assert Sends.of("a/b") is None, "the API alone is nobody to tell"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
