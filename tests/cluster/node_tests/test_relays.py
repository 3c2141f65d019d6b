"""Relays in pods: who reads through one goes on when its pod is killed."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.cluster.harness.kubernetes import eventually
from tests.cluster.harness.streams import SMALL, condition, stream

READER = """
import asyncio, epochal, json, sys

async def write(writer):
    for time in range(1, 10_000):
        await writer.append(time, [{"n": time}])
        await writer.advance(time + 1)
        await asyncio.sleep(0.1)

async def main():
    name = sys.argv[1]
    async with (
        epochal.connect() as client,
        client.subscribe(name, via="relay:near") as reader,
        client.writer(name, writer_id="w") as writer,
    ):
        [first] = await client.catalog.relays(*name.split("/"))
        writing = asyncio.create_task(write(writer))
        ways, times = set(), []
        async for epoch in reader.epochs():
            times.append(epoch.time)
            ways.update(reader.via.values())
            relays = await client.catalog.relays(*name.split("/"))
            if any(relay.id != first.id and relay.load for relay in relays):
                break
        writing.cancel()
    print(json.dumps({"ways": sorted(ways), "times": times}))

asyncio.run(main())
"""
"""Publishes ten epochs a second, reads them through relays until another one has its subscription, and says which."""


def test_who_reads_through_a_relay_goes_on_when_its_pod_is_killed(cluster, streams, toolbox):
    streams.start(stream("orders", storage=False))
    metadata = {"name": "near", "namespace": streams.namespace}
    document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": metadata}
    cluster.apply({**document, "spec": {"stream": "orders", "resources": SMALL}}, namespace=streams.namespace)

    def relay() -> dict[str, Any]:
        return dict(cluster.get("relay", "near", namespace=streams.namespace))

    def pods() -> set[str]:
        items = cluster.get("pods", "-l", "epochal.dev/relay=near", namespace=streams.namespace)["items"]
        return {pod["metadata"]["name"] for pod in items}

    eventually(lambda: condition(relay(), "Ready").get("status") == "True")
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(toolbox.run, "python", "-c", READER, f"{streams.namespace}/orders")
        eventually(lambda: reading.done() or relay()["status"].get("subscribers") == 1)
        [pod] = pods()
        cluster.kubectl("delete", "pod", pod, "-n", streams.namespace, "--grace-period=0", "--force", "--wait=false")
        told = json.loads(reading.result())
    assert told["ways"] == ["relay:near"]
    first, *_, last = told["times"]
    assert told["times"] == list(range(first, last + 1)), "each once, in order, and none is missing"
    assert pods() != {pod}
    cluster.kubectl("delete", "relay", "near", "-n", streams.namespace)
    eventually(lambda: not pods())
