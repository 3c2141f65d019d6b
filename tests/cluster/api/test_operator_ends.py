"""Deletion in every state, streams made anew, and a catalog that is away (faults 41 to 43)."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.cluster.api.sandbox import BAD_IMAGE, Sandbox, eventually
from tests.cluster.harness.apiserver import ApiServer
from tests.patience import PATIENCE

from epochal.client.catalog.catalog import CatalogClient

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


async def test_deleted_while_it_is_being_made(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    for _ in range(3):
        await sandbox.declare(segments=8, **STORAGE)
        await eventually(lambda: has_pods(sandbox, 1))
        await sandbox.delete()
        await sandbox.is_gone()
        assert await sandbox.at_the_catalog() is None
    uids = [uid for _, uid, state in sandbox.node.diary if state == "new"]
    assert len(uids) == len(set(uids))


async def has_pods(sandbox: Sandbox, count: int) -> bool:
    return sum(kind == "Pod" for kind, _ in await sandbox.children()) >= count


@pytest.mark.parametrize("state", ["never ready", "invalid", "conflict", "rolling", "declared only"])
async def test_deleted_in_whatever_state(sandbox: Sandbox, cluster_with_streams: ApiServer, state: str) -> None:
    operator = sandbox.operator(image=BAD_IMAGE if state == "never ready" else "good")
    if state == "declared only":
        await sandbox.declare()
        await sandbox.delete()
        await sandbox.is_gone()
        return
    await operator.start()
    if state == "conflict":
        cluster_with_streams.kubectl("create", "service", "clusterip", "flights", "--tcp=1:1", "-n", sandbox.namespace)
    await sandbox.declare(publishers={"advertise": "no host {index}"} if state == "invalid" else {})
    match state:
        case "never ready":
            await sandbox.is_told("Progressing", "RolloutStuck")
        case "invalid":
            await sandbox.is_told("Ready", "Invalid")
        case "conflict":
            await sandbox.is_told("Ready", "NameConflict")
        case "rolling":
            await sandbox.is_ready()
            sandbox.node.held = True
            await operator.stop()
            await sandbox.operator(image="newer").start()
            await sandbox.is_told("Progressing", "Rolling")
    await sandbox.delete()
    await sandbox.is_gone()
    assert await sandbox.at_the_catalog() is None
    if state == "conflict":
        assert cluster_with_streams.find("service", "flights", namespace=sandbox.namespace) is not None


async def test_created_again_under_the_same_name_it_is_another_stream(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    first = await sandbox.declare(**STORAGE)
    old = await sandbox.is_ready()
    await sandbox.delete()

    async def free() -> bool:
        found = await sandbox.stream()
        return found is None or found["metadata"]["uid"] != first["metadata"]["uid"]

    await eventually(free)
    await sandbox.declare(segments=1, **STORAGE)  # at once: its children's names are taken still
    new = await sandbox.is_ready()
    assert new["status"]["catalogUid"] == await sandbox.at_the_catalog() != old["status"]["catalogUid"]
    for item in (await sandbox.children()).values():
        [owner] = item["metadata"]["ownerReferences"]
        assert owner["uid"] == new["metadata"]["uid"]


async def test_a_stream_that_was_created_again_unobserved(sandbox: Sandbox) -> None:
    operator = sandbox.operator()
    await operator.start()
    await sandbox.declare()
    old = await sandbox.is_ready()
    await operator.kill()
    await sandbox.delete()
    await sandbox.api.merge((await sandbox.stream()) or {}, {"metadata": {"finalizers": []}})
    await sandbox.declare(time={"shape": "(int, int)"})
    await operator.start()
    new = await sandbox.is_ready()
    assert new["status"]["catalogUid"] == await sandbox.at_the_catalog() != old["status"]["catalogUid"]


async def test_a_deletion_waits_for_the_catalog_for_a_while_only(sandbox: Sandbox) -> None:
    await sandbox.operator(deletion_patience=4).start()
    await sandbox.declare()
    await sandbox.is_ready()
    await sandbox.catalog.kill()
    await sandbox.delete()
    await sandbox.is_told("Ready", "Deleting")
    await sandbox.is_gone()
    assert "CatalogUnavailable" in await sandbox.events()
    await sandbox.catalog.start()
    await eventually(lambda: is_forgotten(sandbox))


async def is_forgotten(sandbox: Sandbox) -> bool:
    return await sandbox.at_the_catalog() is None


async def test_the_deletion_reaches_a_catalog_that_comes_back_in_time_at_once(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare()
    await sandbox.is_ready()
    await sandbox.catalog.kill()
    await sandbox.delete()
    await sandbox.is_told("Ready", "Deleting")
    await sandbox.catalog.start()
    await sandbox.is_gone()
    assert await sandbox.at_the_catalog() is None


async def test_without_a_catalog_pods_are_repaired_and_nothing_is_rolled(sandbox: Sandbox) -> None:
    first = sandbox.operator()
    await first.start()
    await sandbox.declare()
    ready = await sandbox.is_ready()
    await sandbox.catalog.kill()
    await first.kill()
    newer = sandbox.operator(image="newer", resync=0.5)
    await newer.start()
    await sandbox.is_told("Degraded", "CatalogUnavailable")
    pods = {name: item for (kind, name), item in (await sandbox.children()).items() if kind == "Pod"}
    await sandbox.lose(pods["flights-1"])
    await sandbox.is_made_anew(pods["flights-1"])
    await newer.has_looked(4)
    assert (await sandbox.children())["Pod", "flights-0"]["metadata"]["uid"] == pods["flights-0"]["metadata"]["uid"]
    await sandbox.catalog.start()
    again = await sandbox.is_ready()
    assert again["status"]["catalogUid"] == ready["status"]["catalogUid"]


async def test_streams_that_were_declared_by_hand_are_left_alone(sandbox: Sandbox) -> None:
    by_hand = sandbox.document("mine", 1)
    async with CatalogClient(sandbox.catalog.url) as client:
        await client.apply(by_hand, sandbox.namespace, "mine")
    before = await sandbox.at_the_catalog("mine")
    assert before is not None
    operator = sandbox.operator()
    await operator.start()
    await sandbox.declare("orphan")  # a name behind the other: where it is collected, that was looked at
    await sandbox.is_ready("orphan")
    await operator.kill()
    await sandbox.delete("orphan")
    await sandbox.api.merge((await sandbox.stream("orphan")) or {}, {"metadata": {"finalizers": []}})
    await operator.start()

    async def collected() -> bool:
        return await sandbox.at_the_catalog("orphan") is None

    await eventually(collected)
    assert await sandbox.at_the_catalog("mine") == before
    await sandbox.declare("mine", 1)  # and taken over with the object of its name
    await sandbox.is_ready("mine")
    assert await sandbox.at_the_catalog("mine") == before


async def test_a_release_lets_streams_go_without_an_operator(sandbox: Sandbox) -> None:
    operator = sandbox.operator()
    await operator.start()
    await sandbox.declare()
    await sandbox.is_ready()
    await operator.stop()
    await sandbox.delete()
    releasing = sandbox.program("epochal_operator", "release", "--settle", "1", "--namespaces", sandbox.namespace)
    assert "released 0 streams" in await releasing, "another operator's are not let go"
    whose = f"{sandbox.namespace}/epochal-operator"
    releasing = sandbox.program("epochal_operator", "release", "--settle", "1", "--operator", whose)
    assert "released 1 streams" in await releasing
    await sandbox.is_gone()


async def test_it_ends_in_order_when_it_is_asked_to(sandbox: Sandbox) -> None:
    operator = sandbox.operator()
    await operator.start()
    await sandbox.declare()
    await sandbox.is_ready()
    assert operator.child is not None
    assert await operator.child.stop(20) == 0
    operator.child = None


async def test_an_operator_that_is_stopped_ends_in_order_and_gives_up_its_lease(sandbox: Sandbox) -> None:
    operator = sandbox.operator()
    await operator.start()
    await sandbox.declare()
    await sandbox.is_ready()
    assert operator.process is not None
    os.kill(operator.process, signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert await operator.ended() == 0
    lease = await sandbox.api.get("Lease", sandbox.namespace, "epochal-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
