"""Deletion in every state, streams made anew, and a catalog that is away (faults 41 to 43)."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.cluster.api.stage import BAD_IMAGE, Stage, eventually
from tests.cluster.harness.apiserver import ApiServer

from epochal.client.catalog.catalog import CatalogClient

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


async def test_deleted_while_it_is_being_made(on_stage: Stage) -> None:
    await on_stage.operator().start()
    for _ in range(3):
        await on_stage.declare(segments=8, **STORAGE)
        await eventually(lambda: has_pods(on_stage, 1))
        await on_stage.delete()
        await on_stage.is_gone()
        assert await on_stage.at_the_catalog() is None
    uids = [uid for _, uid, state in on_stage.node.diary if state == "new"]
    assert len(uids) == len(set(uids))


async def has_pods(stage: Stage, count: int) -> bool:
    return sum(kind == "Pod" for kind, _ in await stage.children()) >= count


@pytest.mark.parametrize("state", ["never ready", "invalid", "conflict", "rolling", "declared only"])
async def test_deleted_in_whatever_state(on_stage: Stage, cluster_with_streams: ApiServer, state: str) -> None:
    operator = on_stage.operator(image=BAD_IMAGE if state == "never ready" else "good")
    if state == "declared only":
        await on_stage.declare()
        await on_stage.delete()
        await on_stage.is_gone()
        return
    await operator.start()
    if state == "conflict":
        cluster_with_streams.kubectl("create", "service", "clusterip", "flights", "--tcp=1:1", "-n", on_stage.namespace)
    await on_stage.declare(publishers={"advertise": "no host {index}"} if state == "invalid" else {})
    match state:
        case "never ready":
            await on_stage.is_told("Progressing", "RolloutStuck")
        case "invalid":
            await on_stage.is_told("Ready", "Invalid")
        case "conflict":
            await on_stage.is_told("Ready", "NameConflict")
        case "rolling":
            await on_stage.is_ready()
            on_stage.node.held = True
            await operator.stop()
            await on_stage.operator(image="newer").start()
            await on_stage.is_told("Progressing", "Rolling")
    await on_stage.delete()
    await on_stage.is_gone()
    assert await on_stage.at_the_catalog() is None
    if state == "conflict":
        assert cluster_with_streams.find("service", "flights", namespace=on_stage.namespace) is not None


async def test_made_anew_under_the_same_name_it_is_another_stream(on_stage: Stage) -> None:
    await on_stage.operator().start()
    first = await on_stage.declare(**STORAGE)
    old = await on_stage.is_ready()
    await on_stage.delete()

    async def free() -> bool:
        found = await on_stage.stream()
        return found is None or found["metadata"]["uid"] != first["metadata"]["uid"]

    await eventually(free)
    await on_stage.declare(segments=1, **STORAGE)  # at once: its children's names are taken still
    new = await on_stage.is_ready()
    assert new["status"]["catalogUid"] == await on_stage.at_the_catalog() != old["status"]["catalogUid"]
    for item in (await on_stage.children()).values():
        [owner] = item["metadata"]["ownerReferences"]
        assert owner["uid"] == new["metadata"]["uid"]


async def test_a_stream_that_was_made_anew_while_nobody_looked(on_stage: Stage) -> None:
    operator = on_stage.operator()
    await operator.start()
    await on_stage.declare()
    old = await on_stage.is_ready()
    await operator.kill()
    await on_stage.delete()
    await on_stage.api.merge((await on_stage.stream()) or {}, {"metadata": {"finalizers": []}})
    await on_stage.declare(time={"shape": "(int, int)"})
    await operator.start()
    new = await on_stage.is_ready()
    assert new["status"]["catalogUid"] == await on_stage.at_the_catalog() != old["status"]["catalogUid"]


async def test_a_deletion_waits_for_the_catalog_for_a_while_only(on_stage: Stage) -> None:
    await on_stage.operator(deletion_patience=4).start()
    await on_stage.declare()
    await on_stage.is_ready()
    await on_stage.catalog.kill()
    await on_stage.delete()
    await on_stage.is_told("Ready", "Deleting")
    await on_stage.is_gone()
    assert "CatalogUnavailable" in await on_stage.events()
    await on_stage.catalog.start()
    await eventually(lambda: is_forgotten(on_stage))


async def is_forgotten(stage: Stage) -> bool:
    return await stage.at_the_catalog() is None


async def test_a_catalog_that_comes_back_in_time_is_told_at_once(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare()
    await on_stage.is_ready()
    await on_stage.catalog.kill()
    await on_stage.delete()
    await on_stage.is_told("Ready", "Deleting")
    await on_stage.catalog.start()
    await on_stage.is_gone()
    assert await on_stage.at_the_catalog() is None


async def test_without_a_catalog_pods_are_repaired_and_nothing_is_rolled(on_stage: Stage) -> None:
    first = on_stage.operator()
    await first.start()
    await on_stage.declare()
    ready = await on_stage.is_ready()
    await on_stage.catalog.kill()
    await first.kill()
    newer = on_stage.operator(image="newer", resync=0.5)
    await newer.start()
    await on_stage.is_told("Degraded", "CatalogUnavailable")
    pods = {name: item for (kind, name), item in (await on_stage.children()).items() if kind == "Pod"}
    await on_stage.lose(pods["flights-1"])
    await on_stage.is_made_anew(pods["flights-1"])
    await newer.has_looked(4)
    assert (await on_stage.children())["Pod", "flights-0"]["metadata"]["uid"] == pods["flights-0"]["metadata"]["uid"]
    await on_stage.catalog.start()
    again = await on_stage.is_ready()
    assert again["status"]["catalogUid"] == ready["status"]["catalogUid"]


async def test_streams_that_were_declared_by_hand_are_left_alone(on_stage: Stage) -> None:
    by_hand = on_stage.document("mine", 1)
    async with CatalogClient(on_stage.catalog.url) as client:
        await client.apply(by_hand, on_stage.namespace, "mine")
    before = await on_stage.at_the_catalog("mine")
    assert before is not None
    operator = on_stage.operator()
    await operator.start()
    await on_stage.declare("orphan")  # a name behind the other: where it is collected, that was looked at
    await on_stage.is_ready("orphan")
    await operator.kill()
    await on_stage.delete("orphan")
    await on_stage.api.merge((await on_stage.stream("orphan")) or {}, {"metadata": {"finalizers": []}})
    await operator.start()

    async def collected() -> bool:
        return await on_stage.at_the_catalog("orphan") is None

    await eventually(collected)
    assert await on_stage.at_the_catalog("mine") == before
    await on_stage.declare("mine", 1)  # and taken over with the object of its name
    await on_stage.is_ready("mine")
    assert await on_stage.at_the_catalog("mine") == before


async def test_a_release_lets_streams_go_without_an_operator(on_stage: Stage) -> None:
    operator = on_stage.operator()
    await operator.start()
    await on_stage.declare()
    await on_stage.is_ready()
    await operator.stop()
    await on_stage.delete()
    releasing = on_stage.program("epochal_operator", "release", "--settle", "1", "--namespaces", on_stage.namespace)
    assert "released 0 streams" in await releasing, "another operator's are not let go"
    whose = f"{on_stage.namespace}/epochal-operator"
    releasing = on_stage.program("epochal_operator", "release", "--settle", "1", "--operator", whose)
    assert "released 1 streams" in await releasing
    await on_stage.is_gone()


async def test_it_ends_in_order_when_it_is_told_to(on_stage: Stage) -> None:
    operator = on_stage.operator()
    await operator.start()
    await on_stage.declare()
    await on_stage.is_ready()
    assert operator.child is not None
    assert await operator.child.stop(20) == 0
    operator.child = None


async def test_an_operator_that_is_stopped_ends_in_order_and_gives_up_its_lease(on_stage: Stage) -> None:
    operator = on_stage.operator()
    await operator.start()
    await on_stage.declare()
    await on_stage.is_ready()
    assert operator.process is not None
    os.kill(operator.process, signal.SIGTERM)
    async with asyncio.timeout(15):
        assert await operator.ended() == 0
    lease = await on_stage.api.get("Lease", on_stage.namespace, "epochal-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
