"""The operator on a real API server: what it makes, repairs, rolls and takes back."""

from typing import Any

import pytest
from tests.cluster.api.sandbox import BAD_IMAGE, Sandbox, eventually, scrape
from tests.cluster.harness.apiserver import ApiServer
from tests.ports import free_port

from epochal.client.catalog.catalog import CatalogClient
from epochal.resources.cluster.stream import MANAGED_LABEL

STORAGE: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}}


async def test_a_stream_is_made_served_and_taken_back(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(**STORAGE)
    stream = await sandbox.is_ready()
    assert stream["status"]["readySegments"] == stream["status"]["segments"] == 2
    assert stream["status"]["catalogUid"] == await sandbox.at_the_catalog()
    assert "frontier" not in stream["status"], "no publisher has told one"
    assert set(await sandbox.children()) == {
        ("ServiceAccount", "flights-publisher"),
        ("Service", "flights"),
        ("PersistentVolumeClaim", "flights-0"),
        ("PersistentVolumeClaim", "flights-1"),
        ("Pod", "flights-0"),
        ("Pod", "flights-1"),
        ("PodDisruptionBudget", "flights-publisher"),
        ("NetworkPolicy", "flights-publisher"),
    }
    await sandbox.delete()
    await sandbox.is_gone()
    assert await sandbox.at_the_catalog() is None


async def test_where_there_is_nothing_to_do_nothing_is_written(sandbox: Sandbox) -> None:
    await sandbox.declare(**STORAGE)
    first = sandbox.operator()
    await first.start()
    await sandbox.is_ready()
    await first.stop()
    probed = free_port()
    operator = sandbox.operator(resync=0.3, port=probed)
    await operator.start()  # it knows all of it from lists
    await operator.has_looked(3)
    for probe in ("healthz", "readyz"):
        assert await scrape(f"http://127.0.0.1:{probed}/{probe}") == "ok\n"

    async def writes() -> float:
        requests = "epochal_operator_kubernetes_requests_total"
        return await operator.counted(requests) - await operator.counted(requests, '"GET"')

    async def versions() -> dict[Any, str]:
        everything: dict[Any, Any] = {"stream": await sandbox.stream(), **await sandbox.children()}
        return {place: item["metadata"]["resourceVersion"] for place, item in everything.items() if item}

    before, told = await versions(), await sandbox.events()
    await operator.has_looked(8)
    assert await writes() == 0
    assert await versions() == before
    assert await sandbox.events() == told


@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy", "Pod"])
async def test_what_is_deleted_comes_back(sandbox: Sandbox, kind: str) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    [lost] = [item for (found, _), item in (await sandbox.children()).items() if found == kind]
    await sandbox.lose(lost)
    await sandbox.is_made_anew(lost)
    await sandbox.is_ready()


async def test_what_is_edited_is_repaired_and_what_others_add_stays(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    service = (await sandbox.children())["Service", "flights"]
    edited = {"metadata": {"labels": {"team": "x"}}, "spec": {"selector": {"epochal.dev/stream": "other"}}}
    await sandbox.api.merge(service, edited)

    async def look() -> bool:
        found = (await sandbox.children())["Service", "flights"]
        return bool(found["spec"]["selector"]["epochal.dev/stream"] == "flights")

    await eventually(look)
    assert (await sandbox.children())["Service", "flights"]["metadata"]["labels"]["team"] == "x"


async def test_a_policy_that_was_opened_is_closed_again(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    await sandbox.is_ready()
    policy = (await sandbox.children())["NetworkPolicy", "flights-publisher"]
    drawn = policy["spec"]["ingress"]
    await sandbox.api.merge(policy, {"spec": {"ingress": [*drawn, {}]}})

    async def look() -> bool:
        return bool((await sandbox.children())["NetworkPolicy", "flights-publisher"]["spec"]["ingress"] == drawn)

    await eventually(look)


async def test_a_pod_that_was_evicted_is_replaced(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare()
    await sandbox.is_ready()
    pod = (await sandbox.children())["Pod", "flights-1"]
    sandbox.node.held = True
    await sandbox.node.say(pod, ready=False, state={"terminated": {"exitCode": 137}}, phase="Failed")
    await sandbox.is_made_anew(pod)
    sandbox.node.held = False
    await sandbox.is_ready()


# ---- rolling --------------------------------------------------------------------------------------------------


async def test_a_new_image_reaches_one_pod_after_the_other(sandbox: Sandbox) -> None:
    first = sandbox.operator()
    await first.start()
    await sandbox.declare(segments=3)
    await sandbox.is_ready()
    await first.stop()
    before = {item["metadata"]["uid"] for (kind, _), item in (await sandbox.children()).items() if kind == "Pod"}
    sandbox.node.watching, sandbox.node.fewest_ready = True, 3
    await sandbox.operator(image="registry.example/publisher:2").start()

    async def look() -> bool:
        pods = [item for (kind, _), item in (await sandbox.children()).items() if kind == "Pod"]
        return len(pods) == 3 and not before & {pod["metadata"]["uid"] for pod in pods}

    await eventually(look)
    await sandbox.is_ready()
    assert sandbox.node.fewest_ready >= 2
    images = {
        item["spec"]["containers"][0]["image"] for place, item in (await sandbox.children()).items() if "Pod" in place
    }
    assert images == {"registry.example/publisher:2"}


async def test_an_image_that_is_none_stops_at_the_first_pod_and_going_back_heals(sandbox: Sandbox) -> None:
    first = sandbox.operator()
    await first.start()
    await sandbox.declare(segments=3)
    await sandbox.is_ready()
    await first.stop()
    bad = sandbox.operator(image=BAD_IMAGE)
    await bad.start()
    await sandbox.is_told("Progressing", "RolloutStuck")
    await bad.has_looked(3)
    images = [
        item["spec"]["containers"][0]["image"]
        for (kind, _), item in (await sandbox.children()).items()
        if kind == "Pod"
    ]
    assert images.count(BAD_IMAGE) == 1
    stream = await sandbox.stream()
    assert stream is not None
    assert stream["status"]["readySegments"] == 2
    await bad.stop()
    await first.start()
    await sandbox.is_ready()


async def test_settings_restart_publishers_only_where_their_history_survives(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare("kept", 1, **STORAGE)
    await sandbox.declare("passing", 1)
    await sandbox.is_ready("kept")
    await sandbox.is_ready("passing")

    async def uids() -> list[str]:
        return [(await sandbox.children(name))["Pod", f"{name}-0"]["metadata"]["uid"] for name in ("kept", "passing")]

    before = await uids()
    for name in ("kept", "passing"):
        await sandbox.change(name, progress={"minWriters": 2})

    async def look() -> bool:
        found = await sandbox.children("kept")
        return ("Pod", "kept-0") in found and found["Pod", "kept-0"]["metadata"]["uid"] != before[0]

    await eventually(look)
    await sandbox.is_ready("kept")
    await sandbox.is_ready("passing")
    assert (await uids())[1] == before[1]
    async with CatalogClient(sandbox.catalog.url) as client:
        declared = await client.get(sandbox.namespace, "passing")
    assert declared.declared().spec.progress.min_writers == 2


async def test_a_change_and_back_ends_where_it_began(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=2, **STORAGE)
    await sandbox.is_ready()

    async def shape() -> dict[Any, Any]:
        def bare(item: dict[str, Any]) -> dict[str, Any]:
            counted = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences")
            metadata = {name: value for name, value in item["metadata"].items() if name not in counted}
            return {"metadata": metadata, "spec": item.get("spec")}

        return {place: bare(item) for place, item in (await sandbox.children()).items()}

    before = await shape()
    await sandbox.change(push={"heartbeat": "2s"}, publishers={"nodeSelector": {"disk": "ssd"}})
    await eventually(lambda: differs(shape, before))
    await sandbox.is_ready()
    await sandbox.change(push={"heartbeat": "1s"}, publishers={"nodeSelector": None})
    await eventually(lambda: equals(shape, before))
    await sandbox.is_ready()
    assert await shape() == before


async def test_a_change_that_starts_nothing_is_reported_complete_at_once(sandbox: Sandbox) -> None:
    await sandbox.operator(resync=3600, catalog_interval=3600).start()
    await sandbox.declare()
    await sandbox.is_ready()
    await sandbox.change(access={"publish": [{"serviceAccount": "*", "namespace": "elsewhere"}]})
    await sandbox.is_ready()


async def test_one_segment_a_pod_is_given_or_left_out_and_no_pod_is_replaced(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=2, publishers={"segmentsPerPod": 1})
    await sandbox.is_ready()
    before = {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()}
    for given in (None, 1):
        await sandbox.change(publishers={"segmentsPerPod": given})
        stream = await sandbox.is_ready()
        assert stream["spec"]["publishers"].get("segmentsPerPod") == given
        assert {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()} == before
        async with CatalogClient(sandbox.catalog.url) as client:
            declared = await client.get(sandbox.namespace, "flights")
        assert declared.declared().spec.publishers.segments_per_pod == given


async def differs(look: Any, before: Any) -> bool:
    return bool(await look() != before)


async def equals(look: Any, before: Any) -> bool:
    return bool(await look() == before)


# ---- what goes wrong ------------------------------------------------------------------------------------------


async def test_a_manifest_that_only_the_model_refuses_is_reported_and_what_runs_stays(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=2)
    ready = await sandbox.is_ready()
    before = {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()}
    await sandbox.change(publishers={"advertise": "not a host {index}"})
    await sandbox.is_told("Degraded", "Invalid")
    stream = await sandbox.stream()
    assert stream is not None
    [told] = [item["message"] for item in stream["status"]["conditions"] if item["type"] == "Degraded"]
    assert told.startswith("spec.publishers.advertise: 'not a host 0' is not a host")
    served = {"Ready": ("True", "Serving"), "Progressing": ("False", "Invalid"), "Degraded": ("True", "Invalid")}
    assert await sandbox.conditions() == served
    assert stream["status"]["catalogUid"] == ready["status"]["catalogUid"]
    assert {place: item["metadata"]["uid"] for place, item in (await sandbox.children()).items()} == before
    async with CatalogClient(sandbox.catalog.url) as client:
        declared = await client.get(sandbox.namespace, "flights")
    assert declared.declared().spec.publishers.advertise == "", "the catalog has not heard of it"
    await sandbox.change(publishers={"advertise": "{index}.example"})
    await sandbox.is_ready()


async def test_while_a_manifest_is_wrong_what_is_lost_is_made_as_the_last_good_one_says(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=2)
    await sandbox.is_ready()
    wrong = {"advertise": "not a host {index}", "nodeSelector": {"disk": "ssd"}}
    await sandbox.change(publishers=wrong)
    await sandbox.is_told("Degraded", "Invalid")
    sandbox.node.held = True
    pod = (await sandbox.children())["Pod", "flights-1"]
    await sandbox.lose(pod)
    await sandbox.is_made_anew(pod)
    await eventually(lambda: is_said(sandbox, "Ready", "PublishersNotReady"))
    stream = await sandbox.stream()
    assert stream is not None
    assert stream["status"]["readySegments"] == 1
    sandbox.node.held = False
    await eventually(lambda: is_said(sandbox, "Ready", "Serving"))
    made = (await sandbox.children())["Pod", "flights-1"]
    assert "nodeSelector" not in made["spec"]
    await sandbox.change(publishers={"advertise": "", "nodeSelector": None})
    await sandbox.is_ready()
    assert (await sandbox.children())["Pod", "flights-1"]["metadata"]["uid"] == made["metadata"]["uid"]


async def test_what_the_api_server_refuses_is_reported(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    half = {"limits": {"example.com/device": "500m"}}  # whether that can be divided, only the API server knows
    await sandbox.declare(segments=1, publishers={"resources": half})
    await sandbox.is_told("Degraded", "Refused")
    assert (await sandbox.conditions())["Ready"] == ("False", "PublishersNotReady")
    await sandbox.change(publishers={"resources": None})
    await sandbox.is_ready()


async def test_a_volume_that_may_not_grow_stops_no_repair_and_going_back_heals(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(**STORAGE)
    await sandbox.is_ready()
    await sandbox.change(history={"storage": {"size": "2Gi"}})  # no storage class, no growth
    await sandbox.is_told("Progressing", "Refused")
    assert await sandbox.conditions() == {
        "Ready": ("True", "Serving"),
        "Progressing": ("False", "Refused"),
        "Degraded": ("True", "Refused"),
    }
    pod = (await sandbox.children())["Pod", "flights-1"]
    await sandbox.lose(pod)
    await sandbox.is_made_anew(pod)
    await eventually(lambda: is_said(sandbox, "Ready", "Serving"))
    await sandbox.change(history={"storage": {"size": "1Gi"}})
    await sandbox.is_ready()


async def is_said(sandbox: Sandbox, kind: str, reason: str) -> bool:
    return (await sandbox.conditions())[kind][1] == reason


async def test_a_name_that_is_taken_by_another_owner_is_reported_and_left_alone(
    sandbox: Sandbox, cluster_with_streams: ApiServer
) -> None:
    cluster_with_streams.kubectl("create", "service", "clusterip", "flights", "--tcp=1:1", "-n", sandbox.namespace)
    cluster_with_streams.kubectl("run", "flights-1", "--image=x", "-n", sandbox.namespace)
    before = cluster_with_streams.get("service", "flights", namespace=sandbox.namespace)
    await sandbox.operator().start()
    await sandbox.declare()
    await sandbox.is_told("Ready", "NameConflict")
    assert cluster_with_streams.get("service", "flights", namespace=sandbox.namespace) == before
    cluster_with_streams.kubectl("delete", "service", "flights", "-n", sandbox.namespace)
    cluster_with_streams.kubectl("delete", "pod", "flights-1", "--force", "-n", sandbox.namespace)
    await sandbox.is_ready()


async def test_no_pod_is_made_on_a_claim_that_has_another_owner(sandbox: Sandbox) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "flights-0", "namespace": sandbox.namespace}
    await sandbox.api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    operator = sandbox.operator(resync=0.3)
    await operator.start()
    await sandbox.declare(**STORAGE)
    await sandbox.is_told("Ready", "NameConflict")
    await operator.has_looked(4)
    assert (await sandbox.conditions())["Ready"] == ("False", "NameConflict")
    assert {name for name, _, _ in sandbox.node.diary} == {"flights-1"}, "the other segment has its own"


async def test_what_lost_its_labels_is_seen_all_the_same_and_given_them_again(sandbox: Sandbox) -> None:
    """Lists and watches choose by label: to them it was deleted."""
    await sandbox.operator(resync=0.3).start()
    await sandbox.declare()
    await sandbox.is_ready()
    service = (await sandbox.children())["Service", "flights"]
    await sandbox.api.merge(service, {"metadata": {"labels": {MANAGED_LABEL: None}}})

    async def is_labelled() -> bool:
        return ("Service", "flights") in await sandbox.children()

    await eventually(is_labelled)
    await sandbox.change(progress={"minWriters": 2})
    await sandbox.is_ready()


async def test_a_lost_volume_is_reported_and_made_again_with_its_pod(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(**STORAGE)
    await sandbox.is_ready()
    claim = (await sandbox.children())["PersistentVolumeClaim", "flights-0"]
    await sandbox.lose(claim)  # protected while its pod lives
    await sandbox.is_told("Degraded", "VolumeLost")
    pod = (await sandbox.children())["Pod", "flights-0"]
    await sandbox.lose(pod)
    await sandbox.is_made_anew(claim)
    await sandbox.is_told("Degraded", "VolumeReplaced")
    stream = await sandbox.stream()
    assert stream is not None
    [lost] = stream["status"]["lostVolumes"]
    assert lost["name"] == "flights-0"
    assert lost["replacedAt"] >= lost["lostAt"]


async def test_an_edited_catalog_is_brought_back(sandbox: Sandbox) -> None:
    await sandbox.operator().start()
    await sandbox.declare(segments=1)
    first = await sandbox.is_ready()
    async with CatalogClient(sandbox.catalog.url) as client:
        await client.delete(sandbox.namespace, "flights")

    async def look() -> bool:
        stream = await sandbox.stream()
        uid = None if stream is None else stream["status"]["catalogUid"]
        return uid not in (None, first["status"]["catalogUid"]) and uid == await sandbox.at_the_catalog()

    await eventually(look)
    await sandbox.is_ready()
