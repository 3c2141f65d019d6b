"""The operator on a real API server: what it makes, repairs, rolls and takes back."""

from typing import Any

import pytest
from tests.cluster.api.stage import BAD_IMAGE, Stage, eventually, scrape
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.programs import free_port

from epochal.client.catalog.catalog import CatalogClient
from epochal.resources.cluster.names import MANAGED_LABEL

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


async def test_a_stream_is_made_served_and_taken_back(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(**STORAGE)
    stream = await on_stage.is_ready()
    assert stream["status"]["readySegments"] == stream["status"]["segments"] == 2
    assert stream["status"]["catalogUid"] == await on_stage.at_the_catalog()
    assert "frontier" not in stream["status"], "no publisher has told one"
    assert set(await on_stage.children()) == {
        ("ServiceAccount", "flights-publisher"),
        ("Service", "flights"),
        ("PersistentVolumeClaim", "flights-0"),
        ("PersistentVolumeClaim", "flights-1"),
        ("Pod", "flights-0"),
        ("Pod", "flights-1"),
        ("PodDisruptionBudget", "flights-publisher"),
        ("NetworkPolicy", "flights-publisher"),
    }
    await on_stage.delete()
    await on_stage.is_gone()
    assert await on_stage.at_the_catalog() is None


async def test_where_there_is_nothing_to_do_nothing_is_written(on_stage: Stage) -> None:
    await on_stage.declare(**STORAGE)
    first = on_stage.operator()
    await first.start()
    await on_stage.is_ready()
    await first.stop()
    probed = free_port()
    operator = on_stage.operator(resync=0.3, port=probed)
    await operator.start()  # it knows all of it from lists
    await operator.has_looked(3)
    for probe in ("healthz", "readyz"):
        assert await scrape(f"http://127.0.0.1:{probed}/{probe}") == "ok\n"

    async def writes() -> float:
        requests = "epochal_operator_kubernetes_requests_total"
        return await operator.counted(requests) - await operator.counted(requests, '"GET"')

    async def versions() -> dict[Any, str]:
        everything: dict[Any, Any] = {"stream": await on_stage.stream(), **await on_stage.children()}
        return {place: item["metadata"]["resourceVersion"] for place, item in everything.items() if item}

    before, told = await versions(), await on_stage.events()
    await operator.has_looked(8)
    assert await writes() == 0
    assert await versions() == before
    assert await on_stage.events() == told


@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy", "Pod"])
async def test_what_is_deleted_comes_back(on_stage: Stage, kind: str) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=1)
    await on_stage.is_ready()
    [lost] = [item for (found, _), item in (await on_stage.children()).items() if found == kind]
    await on_stage.lose(lost)
    await on_stage.is_made_anew(lost)
    await on_stage.is_ready()


async def test_what_is_edited_is_repaired_and_what_others_add_stays(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=1)
    await on_stage.is_ready()
    service = (await on_stage.children())["Service", "flights"]
    edited = {"metadata": {"labels": {"team": "x"}}, "spec": {"selector": {"epochal.dev/stream": "other"}}}
    await on_stage.api.merge(service, edited)

    async def look() -> bool:
        found = (await on_stage.children())["Service", "flights"]
        return bool(found["spec"]["selector"]["epochal.dev/stream"] == "flights")

    await eventually(look)
    assert (await on_stage.children())["Service", "flights"]["metadata"]["labels"]["team"] == "x"


async def test_a_policy_that_was_opened_is_closed_again(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=1)
    await on_stage.is_ready()
    policy = (await on_stage.children())["NetworkPolicy", "flights-publisher"]
    drawn = policy["spec"]["ingress"]
    await on_stage.api.merge(policy, {"spec": {"ingress": [*drawn, {}]}})

    async def look() -> bool:
        return bool((await on_stage.children())["NetworkPolicy", "flights-publisher"]["spec"]["ingress"] == drawn)

    await eventually(look)


async def test_a_pod_that_was_evicted_is_replaced(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare()
    await on_stage.is_ready()
    pod = (await on_stage.children())["Pod", "flights-1"]
    on_stage.node.held = True
    await on_stage.node.say(pod, ready=False, state={"terminated": {"exitCode": 137}}, phase="Failed")
    await on_stage.is_made_anew(pod)
    on_stage.node.held = False
    await on_stage.is_ready()


# ---- rolling --------------------------------------------------------------------------------------------------


async def test_a_new_image_reaches_one_pod_after_the_other(on_stage: Stage) -> None:
    first = on_stage.operator()
    await first.start()
    await on_stage.declare(segments=3)
    await on_stage.is_ready()
    await first.stop()
    before = {item["metadata"]["uid"] for (kind, _), item in (await on_stage.children()).items() if kind == "Pod"}
    on_stage.node.watching, on_stage.node.fewest_ready = True, 3
    await on_stage.operator(image="registry.example/publisher:2").start()

    async def look() -> bool:
        pods = [item for (kind, _), item in (await on_stage.children()).items() if kind == "Pod"]
        return len(pods) == 3 and not before & {pod["metadata"]["uid"] for pod in pods}

    await eventually(look)
    await on_stage.is_ready()
    assert on_stage.node.fewest_ready >= 2
    images = {
        item["spec"]["containers"][0]["image"] for place, item in (await on_stage.children()).items() if "Pod" in place
    }
    assert images == {"registry.example/publisher:2"}


async def test_an_image_that_is_none_stops_at_the_first_pod_and_going_back_heals(on_stage: Stage) -> None:
    first = on_stage.operator()
    await first.start()
    await on_stage.declare(segments=3)
    await on_stage.is_ready()
    await first.stop()
    bad = on_stage.operator(image=BAD_IMAGE)
    await bad.start()
    await on_stage.is_told("Progressing", "RolloutStuck")
    await bad.has_looked(3)
    images = [
        item["spec"]["containers"][0]["image"]
        for (kind, _), item in (await on_stage.children()).items()
        if kind == "Pod"
    ]
    assert images.count(BAD_IMAGE) == 1
    stream = await on_stage.stream()
    assert stream is not None
    assert stream["status"]["readySegments"] == 2
    await bad.stop()
    await first.start()
    await on_stage.is_ready()


async def test_settings_restart_publishers_only_where_their_history_survives(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare("kept", 1, **STORAGE)
    await on_stage.declare("passing", 1)
    await on_stage.is_ready("kept")
    await on_stage.is_ready("passing")

    async def uids() -> list[str]:
        return [(await on_stage.children(name))["Pod", f"{name}-0"]["metadata"]["uid"] for name in ("kept", "passing")]

    before = await uids()
    for name in ("kept", "passing"):
        await on_stage.change(name, progress={"minWriters": 2})

    async def look() -> bool:
        found = await on_stage.children("kept")
        return ("Pod", "kept-0") in found and found["Pod", "kept-0"]["metadata"]["uid"] != before[0]

    await eventually(look)
    await on_stage.is_ready("kept")
    await on_stage.is_ready("passing")
    assert (await uids())[1] == before[1]
    async with CatalogClient(on_stage.catalog.url) as client:
        declared = await client.get(on_stage.namespace, "passing")
    assert declared.declared().spec.progress.min_writers == 2


async def test_a_change_and_back_ends_where_it_began(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=2, **STORAGE)
    await on_stage.is_ready()

    async def shape() -> dict[Any, Any]:
        def bare(item: dict[str, Any]) -> dict[str, Any]:
            counted = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences")
            metadata = {name: value for name, value in item["metadata"].items() if name not in counted}
            return {"metadata": metadata, "spec": item.get("spec")}

        return {place: bare(item) for place, item in (await on_stage.children()).items()}

    before = await shape()
    await on_stage.change(push={"heartbeat": "2s"}, publishers={"nodeSelector": {"disk": "ssd"}})
    await eventually(lambda: differs(shape, before))
    await on_stage.is_ready()
    await on_stage.change(push={"heartbeat": "1s"}, publishers={"nodeSelector": None})
    await eventually(lambda: equals(shape, before))
    await on_stage.is_ready()
    assert await shape() == before


async def test_a_change_that_starts_nothing_is_told_to_be_complete_at_once(on_stage: Stage) -> None:
    await on_stage.operator(resync=3600, catalog_interval=3600).start()
    await on_stage.declare()
    await on_stage.is_ready()
    await on_stage.change(access={"publish": [{"serviceAccount": "*", "namespace": "elsewhere"}]})
    await on_stage.is_ready()


async def differs(look: Any, before: Any) -> bool:
    return bool(await look() != before)


async def equals(look: Any, before: Any) -> bool:
    return bool(await look() == before)


# ---- what goes wrong ------------------------------------------------------------------------------------------


async def test_a_manifest_that_only_the_model_refuses_is_told_and_what_runs_stays(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=2)
    ready = await on_stage.is_ready()
    before = {place: item["metadata"]["uid"] for place, item in (await on_stage.children()).items()}
    await on_stage.change(publishers={"advertise": "not a host {index}"})
    await on_stage.is_told("Degraded", "Invalid")
    stream = await on_stage.stream()
    assert stream is not None
    [told] = [item["message"] for item in stream["status"]["conditions"] if item["type"] == "Degraded"]
    assert told.startswith("spec.publishers.advertise: 'not a host 0' is not a host")
    served = {"Ready": ("True", "Serving"), "Progressing": ("False", "Invalid"), "Degraded": ("True", "Invalid")}
    assert await on_stage.conditions() == served
    assert stream["status"]["catalogUid"] == ready["status"]["catalogUid"]
    assert {place: item["metadata"]["uid"] for place, item in (await on_stage.children()).items()} == before
    async with CatalogClient(on_stage.catalog.url) as client:
        declared = await client.get(on_stage.namespace, "flights")
    assert declared.declared().spec.publishers.advertise == "", "the catalog has not heard of it"
    await on_stage.change(publishers={"advertise": "{index}.example"})
    await on_stage.is_ready()


async def test_while_a_manifest_is_wrong_what_is_lost_is_made_as_the_last_good_one_says(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=2)
    await on_stage.is_ready()
    wrong = {"advertise": "not a host {index}", "nodeSelector": {"disk": "ssd"}}
    await on_stage.change(publishers=wrong)
    await on_stage.is_told("Degraded", "Invalid")
    on_stage.node.held = True
    pod = (await on_stage.children())["Pod", "flights-1"]
    await on_stage.lose(pod)
    await on_stage.is_made_anew(pod)
    await eventually(lambda: is_said(on_stage, "Ready", "PublishersNotReady"))
    stream = await on_stage.stream()
    assert stream is not None
    assert stream["status"]["readySegments"] == 1
    on_stage.node.held = False
    await eventually(lambda: is_said(on_stage, "Ready", "Serving"))
    made = (await on_stage.children())["Pod", "flights-1"]
    assert "nodeSelector" not in made["spec"]
    await on_stage.change(publishers={"advertise": "", "nodeSelector": None})
    await on_stage.is_ready()
    assert (await on_stage.children())["Pod", "flights-1"]["metadata"]["uid"] == made["metadata"]["uid"]


async def test_what_the_api_server_refuses_is_told(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=1, publishers={"nodeSelector": {"no label": "x"}})
    await on_stage.is_told("Degraded", "Refused")
    assert (await on_stage.conditions())["Ready"] == ("False", "PublishersNotReady")
    await on_stage.change(publishers={"nodeSelector": None})
    await on_stage.is_ready()


async def test_a_volume_that_may_not_grow_stops_no_repair_and_going_back_heals(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(**STORAGE)
    await on_stage.is_ready()
    await on_stage.change(history={"storage": {"size": "2Gi"}})  # no storage class, no growth
    await on_stage.is_told("Progressing", "Refused")
    assert await on_stage.conditions() == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "Refused"),
        "Degraded": ("True", "Refused"),
    }
    pod = (await on_stage.children())["Pod", "flights-1"]
    await on_stage.lose(pod)
    await on_stage.is_made_anew(pod)
    await eventually(lambda: is_said(on_stage, "Ready", "Serving"))
    await on_stage.change(history={"storage": {"size": "1Gi"}})
    await on_stage.is_ready()


async def is_said(stage: Stage, kind: str, reason: str) -> bool:
    return (await stage.conditions())[kind][1] == reason


async def test_a_name_that_somebody_has_is_told_and_left_alone(
    on_stage: Stage, cluster_with_streams: ApiServer
) -> None:
    cluster_with_streams.kubectl("create", "service", "clusterip", "flights", "--tcp=1:1", "-n", on_stage.namespace)
    cluster_with_streams.kubectl("run", "flights-1", "--image=x", "-n", on_stage.namespace)
    before = cluster_with_streams.get("service", "flights", namespace=on_stage.namespace)
    await on_stage.operator().start()
    await on_stage.declare()
    await on_stage.is_told("Ready", "NameConflict")
    assert cluster_with_streams.get("service", "flights", namespace=on_stage.namespace) == before
    cluster_with_streams.kubectl("delete", "service", "flights", "-n", on_stage.namespace)
    cluster_with_streams.kubectl("delete", "pod", "flights-1", "--force", "-n", on_stage.namespace)
    await on_stage.is_ready()


async def test_no_pod_is_made_on_a_claim_that_somebody_else_has(on_stage: Stage) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "flights-0", "namespace": on_stage.namespace}
    await on_stage.api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    operator = on_stage.operator(resync=0.3)
    await operator.start()
    await on_stage.declare(**STORAGE)
    await on_stage.is_told("Ready", "NameConflict")
    await operator.has_looked(4)
    assert (await on_stage.conditions())["Ready"] == ("False", "NameConflict")
    assert {name for name, _, _ in on_stage.node.diary} == {"flights-1"}, "the other segment has its own"


async def test_what_lost_its_labels_is_seen_all_the_same_and_given_them_again(on_stage: Stage) -> None:
    """Lists and watches choose by label: to them it was deleted."""
    await on_stage.operator(resync=0.3).start()
    await on_stage.declare()
    await on_stage.is_ready()
    service = (await on_stage.children())["Service", "flights"]
    await on_stage.api.merge(service, {"metadata": {"labels": {MANAGED_LABEL: None}}})

    async def is_labelled() -> bool:
        return ("Service", "flights") in await on_stage.children()

    await eventually(is_labelled)
    await on_stage.change(progress={"minWriters": 2})
    await on_stage.is_ready()


async def test_a_lost_volume_is_told_and_made_anew_with_its_pod(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(**STORAGE)
    await on_stage.is_ready()
    claim = (await on_stage.children())["PersistentVolumeClaim", "flights-0"]
    await on_stage.lose(claim)  # protected while its pod lives
    await on_stage.is_told("Degraded", "VolumeLost")
    pod = (await on_stage.children())["Pod", "flights-0"]
    await on_stage.lose(pod)
    await on_stage.is_made_anew(claim)
    await on_stage.is_ready()


async def test_an_edited_catalog_is_brought_back(on_stage: Stage) -> None:
    await on_stage.operator().start()
    await on_stage.declare(segments=1)
    first = await on_stage.is_ready()
    async with CatalogClient(on_stage.catalog.url) as client:
        await client.delete(on_stage.namespace, "flights")

    async def look() -> bool:
        stream = await on_stage.stream()
        uid = None if stream is None else stream["status"]["catalogUid"]
        return uid not in (None, first["status"]["catalogUid"]) and uid == await on_stage.at_the_catalog()

    await eventually(look)
    await on_stage.is_ready()
