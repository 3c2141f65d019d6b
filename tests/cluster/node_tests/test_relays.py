"""Relays in pods: readers behind them have every epoch, whoever dies, comes, or moves; and who may connect to them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.cluster.harness.kubernetes import KubectlError, eventually
from tests.cluster.harness.streams import SMALL, condition, stream
from tests.cluster.harness.toolbox import Toolbox

OVER = "/tmp/over"
READERS = f"""
import asyncio, epochal, json, pathlib, sys

async def write(client, name):
    async with client.writer(name, writer_id="w") as writer:
        for time in range(10_000):
            await writer.append(time, [{{"n": time}}])
            await writer.advance(time + 1)
            await asyncio.sleep(0.1)

async def read(client, name):
    times, ways = [], set()
    async with client.subscribe(name, via="relay:near", since="start") as reader:
        async for epoch in reader.epochs():
            times.append(epoch.time)
            ways.update(reader.via.values())
            if pathlib.Path("{OVER}").exists():
                return {{"times": times, "ways": sorted(ways)}}

async def main():
    name = sys.argv[1]
    async with epochal.connect() as client:
        writing = asyncio.create_task(write(client, name))
        print(json.dumps(await asyncio.gather(*(read(client, name) for _ in range(2)))))
        writing.cancel()

asyncio.run(main())
"""
"""Publishes ten epochs a second, reads them through relays twice until it is over, and says which."""
PAGE = "https://page.example"
ASK = """
import json, sys, urllib.request

asked = urllib.request.Request(sys.argv[1], headers={"Origin": sys.argv[2]})
with urllib.request.urlopen(asked) as answer:
    print(json.dumps([answer.headers["Access-Control-Allow-Origin"], json.loads(answer.readline())]))
"""
"""Asks for epochs as a page would; says who may read the answer, and its first line."""


def test_readers_behind_relays_have_every_epoch_while_relays_grow_and_die_and_the_publisher_moves(
    cluster, streams, toolbox, namespaces
):
    streams.start(stream("orders"))
    metadata = {"name": "near", "namespace": streams.namespace}
    grown = {"autoscaling": {"max": 2, "subscribersPerReplica": 1}, "http": {"corsOrigins": [PAGE]}}
    spec = {"stream": "orders", "resources": SMALL, **grown}
    document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": metadata, "spec": spec}
    cluster.apply(document, namespace=streams.namespace)

    def relay() -> dict[str, Any]:
        return dict(cluster.get("relay", "near", namespace=streams.namespace))

    def pods() -> dict[str, str]:
        items = cluster.get("pods", "-l", "epochal.dev/relay=near", namespace=streams.namespace)["items"]
        return {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in items}

    def is_read(replicas: int) -> bool:
        status = relay()["status"]
        return (status.get("readyReplicas"), status.get("subscribers")) == (replicas, 2)

    eventually(lambda: condition(relay(), "Ready").get("status") == "True")
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(toolbox.run, "python", "-c", READERS, f"{streams.namespace}/orders")
        try:
            eventually(lambda: reading.done() or is_read(2))  # two readers, two relays
            before = set(pods())
            gone = min(before)
            cluster.kubectl("delete", "pod", gone, "-n", streams.namespace, "--grace-period=0", "--force")
            eventually(lambda: reading.done() or (gone not in pods() and is_read(2)))
            streams.lose("orders", 0)
            streams.settled("orders")
            _answers_pages_and_lets_in_who_may_read(cluster, streams, toolbox, namespaces, pods())
        finally:
            toolbox.run("touch", OVER)
        for told in json.loads(reading.result()):
            assert told["ways"] == ["relay:near"]
            assert told["times"] == list(range(len(told["times"]))), "each once, in order, and none is missing"
    cluster.kubectl("delete", "relay", "near", "-n", streams.namespace)
    eventually(lambda: not pods())


def _answers_pages_and_lets_in_who_may_read(cluster, streams, toolbox, namespaces, pods) -> None:
    """By its Service for HTTP, by its pods' addresses for subscribers; from where publishers let in subscribers."""
    host = f"near-relay.{streams.namespace}.svc"
    url = f"http://{host}:8704/v1/epochs?since=start&wait=10"
    allowed, first = json.loads(toolbox.run("python", "-c", ASK, url, PAGE))
    assert (allowed, first["kind"], first["time"]) == (PAGE, "epoch", 0)
    assert json.loads(toolbox.run("python", "-c", ASK, url, "https://other.example"))[0] is None
    stranger = Toolbox(cluster, namespaces())
    address = next(address for address in pods.values() if address)
    for where, port in ((host, 8704), (address, 8701), (address, 8702)):
        connect = ("python", "-c", f"import socket; socket.create_connection(({where!r}, {port}), 5)")
        toolbox.run(*connect)
        with pytest.raises(KubectlError, match="timed out"):
            stranger.run(*connect)
