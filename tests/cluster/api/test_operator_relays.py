"""Relays on a real API server with its controllers: made, scaled, taken back, and what stands in their way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cluster.api.sandbox import Node, Object, Sandbox, eventually

from epochal.catalog_api.requests import RegisterRelay, RelayAddresses, RelayReport
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.relay_lease import RelayLease
from epochal.resources.cluster.stream import RELAY_LABEL
from epochal_operator.api import CHILDREN

KINDS = ("ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment")


@pytest.fixture
async def relays(sandbox: Sandbox) -> AsyncIterator["Relays"]:
    """Relays in a sandbox, whose pods become ready as those of publishers do."""
    node = Node(sandbox.api, sandbox.namespace, RELAY_LABEL)
    working = asyncio.create_task(node.run())
    yield Relays(sandbox, node)
    working.cancel()


class Relays:
    """The Relay objects of a sandbox."""

    def __init__(self, sandbox: Sandbox, node: Node) -> None:
        self.sandbox, self.api, self.node = sandbox, sandbox.api, node

    async def declare(self, name: str = "near", **spec: Any) -> Object:
        """Make one."""
        metadata = {"name": name, "namespace": self.sandbox.namespace}
        document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": metadata}
        return await self.api.create({**document, "spec": {"stream": "flights", **spec}})

    async def find(self, name: str = "near") -> Object | None:
        """How it is now."""
        return await self.api.get("Relay", self.sandbox.namespace, name)

    async def told(self, name: str = "near") -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        found = await self.find(name) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return {item["type"]: (item["status"], item["reason"]) for item in conditions}

    async def is_told(self, kind: str, reason: str, name: str = "near") -> None:
        """Wait for a condition with this reason."""

        async def look() -> bool:
            return (await self.told(name)).get(kind, ("", ""))[1] == reason

        await eventually(look)

    async def is_ready(self, replicas: int, name: str = "near") -> Object:
        """Wait until so many serve, and no more are there."""

        async def look() -> Object:
            found = await self.find(name) or {}
            status = found.get("status", {})
            told = {item["type"]: item["reason"] for item in status.get("conditions", ())}
            there = status.get("replicas"), status.get("readyReplicas")
            fine = told == {"Ready": "Serving", "Degraded": "AsExpected"}
            return found if fine and there == (replicas, replicas) else {}

        return await eventually(look)

    async def children(self, name: str = "near") -> dict[tuple[str, str], Object]:
        """What belongs to it, by kind and name."""
        found: dict[tuple[str, str], Object] = {}
        for kind in CHILDREN:
            items, _ = await self.api.list(kind, self.sandbox.namespace, f"{RELAY_LABEL}={name}")
            found |= {(kind.kind, item["metadata"]["name"]): item for item in items}
        return found

    async def are_gone(self, name: str = "near") -> None:
        """Wait until nothing of it is there."""

        async def look() -> bool:
            return await self.find(name) is None and not await self.children(name)

        await eventually(look)

    @contextlib.asynccontextmanager
    async def loaded(self, load: int, name: str = "near") -> AsyncIterator[None]:
        """The catalog lists a relay of this name with so many subscribers, meanwhile."""
        async with CatalogClient(self.sandbox.catalog.url) as client:
            stream = await client.get(self.sandbox.namespace, "flights")
            addresses = RelayAddresses("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
            asked = RegisterRelay(stream.qualified, stream.uid, name, f"{name}-x", addresses, 1000)
            lease = RelayLease(client, asked, lambda: RelayReport("ready", load))
            running = asyncio.create_task(lease.run())
            yield
            running.cancel()
            await asyncio.wait([running])
            await lease.withdraw()


async def test_a_relay_that_crashed_is_named_with_its_reason_and_exit_code(sandbox: Sandbox, relays: Relays) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    await relays.declare(replicas=1)
    await relays.is_ready(1)
    relays.node.held = True
    ((_, name),) = [place for place in await relays.children() if place[0] == "Pod"]
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    pod = (await relays.children())["Pod", name]
    await relays.node.say(pod, ready=False, state={"waiting": {"reason": "CrashLoopBackOff"}}, last=killed)
    await relays.is_told("Degraded", "RelayFailing")
    found = await relays.find() or {}
    for condition in found["status"]["conditions"]:
        assert "ended with OOMKilled, exit code 137" in condition["message"]


async def test_relays_are_made_served_scaled_and_taken_back(sandbox: Sandbox, relays: Relays) -> None:
    await sandbox.operator().start()
    await relays.declare(replicas=2)
    await relays.is_told("Ready", "NoStream")
    assert await relays.children() == {}
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    relay = await relays.is_ready(2)
    children = await relays.children()
    assert {place for place in children if place[0] != "Pod"} == {(kind, "near-relay") for kind in KINDS}
    pods = [item for (kind, _), item in children.items() if kind == "Pod"]
    assert len(pods) == 2
    [container] = pods[0]["spec"]["containers"]
    assert container["command"] == ["epochal-publisher", "relay"]
    scale = f"/apis/epochal.dev/v1alpha1/namespaces/{sandbox.namespace}/relays/near/scale"
    shown = await sandbox.api.request("GET", scale)
    assert (shown["spec"]["replicas"], shown["status"]["replicas"]) == (2, 2)
    assert shown["status"]["selector"] == "app.kubernetes.io/name=epochal-relay,epochal.dev/relay=near"
    await sandbox.api.request(
        "PATCH", scale, {"spec": {"replicas": 3}}, content_type="application/merge-patch+json"
    )  # as kubectl scale and autoscalers do
    await relays.is_ready(3)
    await sandbox.lose((await relays.children())["Deployment", "near-relay"])
    await relays.is_ready(3)
    await sandbox.api.delete(relay)
    await relays.are_gone()
    await sandbox.is_ready()


async def test_relays_end_with_their_stream_and_begin_with_its_successor(sandbox: Sandbox, relays: Relays) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await relays.declare()
    await relays.is_ready(1)
    await sandbox.delete()
    await relays.is_told("Ready", "NoStream")

    async def nothing() -> bool:
        return not await relays.children()

    await eventually(nothing)
    await sandbox.declare(segments=1)
    await relays.is_ready(1)


async def test_relays_follow_the_subscribers_that_the_catalog_lists(sandbox: Sandbox, relays: Relays) -> None:
    await sandbox.operator(relay_scale_up=0.5, relay_scale_down=1).start()
    await sandbox.declare(segments=1)
    await relays.declare(autoscaling={"max": 4, "subscribersPerReplica": 100})
    await relays.is_ready(1)
    async with relays.loaded(250):
        relay = await relays.is_ready(3)

        async def counted() -> bool:
            return bool(((await relays.find()) or {}).get("status", {}).get("subscribers") == 250)

        await eventually(counted)
    await relays.is_ready(1)
    seen = await sandbox.api.get("Relay", sandbox.namespace, "near")
    assert seen is not None
    assert seen["metadata"]["generation"] == relay["metadata"]["generation"], "its spec is the user's"


async def test_a_stream_makes_its_own_relay_and_leaves_anothers_alone(sandbox: Sandbox, relays: Relays) -> None:
    await sandbox.operator().start()
    theirs = await relays.declare("flights", replicas=1, capacity=7)
    await sandbox.declare(segments=1, relays=2)
    await sandbox.is_told("Degraded", "NameConflict")
    await sandbox.is_told("Ready", "Serving")  # the conflict is told while its publishers are still being made
    found = await relays.is_ready(1, "flights")
    assert (found["spec"], found["metadata"]["uid"]) == (theirs["spec"], theirs["metadata"]["uid"])
    await sandbox.api.delete(theirs)
    own = await relays.is_ready(2, "flights")
    assert own["metadata"]["ownerReferences"][0]["kind"] == "Stream"
    await sandbox.is_ready()
    await sandbox.change(relays=0)
    await relays.are_gone("flights")
    await sandbox.change(relays=1)
    await relays.is_ready(1, "flights")
    await sandbox.delete()
    await relays.are_gone("flights")
