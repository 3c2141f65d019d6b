"""The objects of a stream: that Kubernetes takes them, that pods may do little, and what of the manifest goes where."""

import json
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import pytest

from epochal.errors import ManifestError
from epochal.resources.cluster import OWN_ENVIRONMENT, ClusterSettings, ClusterStream, check_drawable, children_of
from epochal.resources.cluster.stream import HASH
from epochal.resources.manifest import StreamManifest

SETTINGS = ClusterSettings(image="registry.example/epochal-publisher:1", catalog="http://catalog:8700")
STORAGE: dict[str, Any] = {"history": {"storage": {"size": "2Gi", "storageClassName": "fast"}}}


def stream(segments: int = 3, name: str = "flights", **spec: Any) -> ClusterStream:
    whole = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "segments": segments, **spec}
    metadata = {"name": name, "namespace": "demo"}
    document = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Stream", "metadata": metadata, "spec": whole}
    ids = tuple(map(str, range(segments)))
    return ClusterStream(StreamManifest.from_document(document), "object-uid", "catalog-uid", ids)


def drawn(what: ClusterStream, settings: ClusterSettings = SETTINGS) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for item in children_of(what, settings):
        found.setdefault(item["kind"], []).append(item)
    return found


def container(what: ClusterStream, index: int = 0, settings: ClusterSettings = SETTINGS) -> dict[str, Any]:
    [found] = drawn(what, settings)["Pod"][index]["spec"]["containers"]
    return dict(found)


def environment(what: ClusterStream, index: int = 0) -> dict[str, str]:
    given = container(what, index)["env"]
    return {item["name"].removeprefix("EPOCHAL_PUBLISHER_"): item["value"] for item in given}


PUBLISHERS: dict[str, Any] = {
    "segmentsPerPod": 2,
    "advertise": "{stream}-{index}.example",
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spark", "operator": "Exists", "effect": "NoSchedule"}],
    "topologySpread": False,
}
ACCESS: dict[str, Any] = {"subscribe": [{"serviceAccount": "*", "namespace": "jobs"}]}
STREAMS = {
    "the least": stream(1),
    "three segments": stream(3),
    "with logs": stream(3, **STORAGE),
    "with everything": stream(5, **STORAGE, publishers=PUBLISHERS, access=ACCESS),
    "the longest name": stream(1024, "a" * 52, publishers={"segmentsPerPod": 512}),
}


@pytest.mark.parametrize("what", STREAMS)
def test_kubernetes_takes_all_of_them(what: str) -> None:
    for item in children_of(STREAMS[what], SETTINGS):
        kubernetes_validate.validate(item, "1.37", strict=True)
        metadata = item["metadata"]
        assert len(metadata["name"]) <= 63
        assert all(len(value) <= 63 for value in metadata["labels"].values())
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "epochal-operator"
        told = {name: metadata["labels"][f"app.kubernetes.io/{name}"] for name in ("part-of", "component", "instance")}
        assert told == {"part-of": "epochal", "component": "publisher", "instance": STREAMS[what].name}
        [owner] = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("object-uid", True, True)


@pytest.mark.parametrize("what", STREAMS)
def test_what_selects_pods_selects_these(what: str) -> None:
    found = drawn(STREAMS[what])
    [service], [budget], [policy] = found["Service"], found["PodDisruptionBudget"], found["NetworkPolicy"]
    selectors = (
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
    )
    for pod in found["Pod"]:
        assert all(selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        assert pod["spec"]["hostname"] == pod["metadata"]["name"]
        assert pod["spec"]["serviceAccountName"] == found["ServiceAccount"][0]["metadata"]["name"]
    assert budget["spec"]["minAvailable"] == len(found["Pod"]) - 1


@pytest.mark.parametrize("what", STREAMS)
def test_pods_may_do_what_pod_security_restricted_allows(what: str) -> None:
    for pod in drawn(STREAMS[what])["Pod"]:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(volume.keys() & {"emptyDir", "persistentVolumeClaim"} for volume in spec["volumes"])
        for each in spec["containers"]:
            allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert each["securityContext"] == {**allowed, "readOnlyRootFilesystem": True}
            assert each["resources"]["limits"]["memory"]
            assert not any("hostPort" in port for port in each["ports"])


def test_a_publisher_gets_all_its_settings_from_its_environment() -> None:
    told = environment(stream(3, **STORAGE), 2)
    assert told == {
        "CATALOG": "http://catalog:8700",
        "STREAM": "demo/flights",
        "SEGMENTS": "2",
        "PUBLISHER": "demo.flights-2",
        "HOST": "0.0.0.0",
        "ADVERTISE": "flights-2.flights.demo.svc",
        "SUPERSEDED_MARK": "/tmp/superseded",
        "EVENTS_PORT": "8701",
        "REQUESTS_PORT": "8702",
        "INGEST_PORT": "8703",
        "HTTP_PORT": "8704",
        "DATA": "/var/lib/epochal",
    }
    assert "DATA" not in environment(stream(3))


def test_the_mark_of_a_superseded_publisher_outlives_the_container_but_not_the_pod() -> None:
    for what in STREAMS.values():
        [pod, *_] = drawn(what)["Pod"]
        mark = PurePosixPath(environment(what)["SUPERSEDED_MARK"])
        [volume] = (each["name"] for each in container(what)["volumeMounts"] if each["mountPath"] == str(mark.parent))
        [kind] = (each.keys() - {"name"} for each in pod["spec"]["volumes"] if each["name"] == volume)
        assert kind == {"emptyDir"}


def test_what_publishers_listen_on_comes_from_the_operator() -> None:
    settings = ClusterSettings("i", "c", listen="::")
    assert {"name": "EPOCHAL_PUBLISHER_HOST", "value": "::"} in container(stream(1), settings=settings)["env"]


def test_the_user_of_pods_can_be_left_to_the_platform() -> None:
    named = {"runAsUser", "runAsGroup", "fsGroup"}
    for settings, expected in ((SETTINGS, named), (ClusterSettings("i", "c", fixed_user=False), set())):
        for pod in drawn(stream(1, **STORAGE), settings)["Pod"]:
            assert pod["spec"]["securityContext"].keys() & named == expected
            assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_every_log_has_a_volume_where_the_publisher_looks_for_it() -> None:
    what = stream(3, **STORAGE, publishers={"segmentsPerPod": 2})
    found = drawn(what)
    assert [item["metadata"]["name"] for item in found["PersistentVolumeClaim"]] == [f"flights-{n}" for n in range(3)]
    assert {item["spec"]["storageClassName"] for item in found["PersistentVolumeClaim"]} == {"fast"}
    first, second = found["Pod"]
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in first["spec"]["volumes"][1:]] == [
        "flights-0",
        "flights-1",
    ]
    mount = second["spec"]["containers"][0]["volumeMounts"][1]
    assert (mount["mountPath"], mount["subPath"]) == ("/var/lib/epochal/catalog-uid/2", "catalog-uid")


def test_a_stream_in_memory_has_no_volumes_although_storage_is_declared() -> None:
    found = drawn(stream(1, history={"storage": {"size": "1Gi"}, "durability": "memory"}))
    assert "PersistentVolumeClaim" not in found


@pytest.mark.parametrize(
    ("asked", "requests", "limits"),
    [
        ({}, {"cpu": "50m", "memory": "128Mi"}, {"memory": "512Mi"}),
        ({"limits": {"memory": "64Mi"}}, {"cpu": "50m"}, {"memory": "64Mi"}),
        ({"requests": {"memory": "4Gi"}}, {"cpu": "50m", "memory": "4Gi"}, {"memory": "4Gi"}),
        ({"limits": {"cpu": "2", "memory": "1Gi"}}, None, {"cpu": "2", "memory": "1Gi"}),
    ],
)
def test_resources_are_always_set_and_never_contradict(asked: Any, requests: Any, limits: Any) -> None:
    found = container(stream(1, **STORAGE, publishers={"resources": asked}))["resources"]
    assert found.get("requests") == requests
    assert found["limits"] == limits


def test_more_history_in_memory_may_take_more_of_it() -> None:
    def limit(size: str) -> str:
        what = stream(1, history={"retention": {"bytes": size}})
        return str(container(what)["resources"]["limits"]["memory"])

    assert (limit("64Mi"), limit("1Gi")) == ("512Mi", "2432Mi")


def test_where_publishers_run_is_as_asked_for() -> None:
    pod = drawn(STREAMS["with everything"])["Pod"][0]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["tolerations"] == PUBLISHERS["tolerations"]
    assert "topologySpreadConstraints" not in pod["spec"]
    assert len(drawn(stream(1))["Pod"][0]["spec"]["topologySpreadConstraints"]) == 2


def test_the_address_that_is_advertised_can_be_chosen() -> None:
    assert environment(STREAMS["with everything"], 2)["ADVERTISE"] == "flights-2.example"
    assert environment(stream(1, publishers={"advertise": "10.0.0.7"}))["ADVERTISE"] == "10.0.0.7"


@pytest.mark.parametrize("pattern", ["{pod}.example", "a b", "{index", "http://a", "one.example"])
def test_an_address_that_cannot_be_one_is_refused(pattern: str) -> None:
    with pytest.raises(ManifestError, match=r"spec\.publishers\.advertise"):
        children_of(stream(3, publishers={"advertise": pattern}), SETTINGS)
    with pytest.raises(ManifestError):
        check_drawable(stream(3, publishers={"advertise": pattern}).manifest)


def rules(what: ClusterStream) -> list[tuple[set[int], list[str], bool]]:
    found = []
    for rule in drawn(what)["NetworkPolicy"][0]["spec"]["ingress"][:2]:
        named = rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"]
        anybody = any("ipBlock" in peer for peer in rule["from"])
        found.append(({port["port"] for port in rule["ports"]}, named, anybody))
    return found


def test_the_network_lets_in_the_namespaces_that_have_access() -> None:
    assert rules(stream()) == [({8701, 8702, 8704}, ["demo"], False), ({8703}, ["demo"], False)]
    assert rules(stream(access=ACCESS)) == [({8701, 8702, 8704}, ["jobs"], False), ({8703}, ["demo"], False)]
    assert all(anybody for _, _, anybody in rules(STREAMS["with everything"]))
    assert "NetworkPolicy" not in drawn(stream(), ClusterSettings("i", "c", network_policies=False))


@pytest.mark.parametrize("what", STREAMS)
def test_monitoring_is_let_in_to_the_http_port_alone(what: str) -> None:
    *_, last = drawn(STREAMS[what])["NetworkPolicy"][0]["spec"]["ingress"]
    labelled = {"namespaceSelector": {"matchLabels": {"epochal.dev/monitoring": "true"}}}
    assert last == {"from": [labelled], "ports": [{"port": 8704, "protocol": "TCP"}]}


def test_pull_secrets_and_policy_come_from_the_operator() -> None:
    settings = ClusterSettings("i", "c", "Never", ("one", "two"))
    assert container(stream(), settings=settings)["imagePullPolicy"] == "Never"
    assert drawn(stream(), settings)["Pod"][0]["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_more_environment_of_publishers_comes_from_the_operator() -> None:
    settings = ClusterSettings("i", "c", publisher_env=(("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),))
    *own, last = container(stream(1, **STORAGE), settings=settings)["env"]
    assert last == {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    assert {each["name"] for each in own} == OWN_ENVIRONMENT
    assert hashes(stream(1)) != hashes(stream(1), settings), "publishers are started anew for it"


def hashes(what: ClusterStream, settings: ClusterSettings = SETTINGS) -> set[str]:
    return {pod["metadata"]["annotations"][HASH] for pod in drawn(what, settings)["Pod"]}


def test_a_publisher_is_restarted_for_its_settings_only_where_its_history_survives() -> None:
    changed: dict[str, Any] = {"progress": {"minWriters": 2}}
    assert hashes(stream(1)) == hashes(stream(1, **changed))
    assert hashes(stream(1, **STORAGE)) != hashes(stream(1, **STORAGE, **changed))
    kept: dict[str, Any] = {"progress": {"whenLost": "release"}}
    held: dict[str, Any] = {"progress": {"whenLost": "hold"}}
    assert hashes(stream(1, **STORAGE)) == hashes(stream(1, **STORAGE, **kept))
    assert hashes(stream(1, **STORAGE)) != hashes(stream(1, **STORAGE, **held))
    assert hashes(stream(1)) != hashes(stream(1), ClusterSettings(image="other", catalog="http://catalog:8700"))


def test_a_larger_volume_restarts_nothing() -> None:
    assert hashes(stream(1, **STORAGE)) == hashes(
        stream(1, history={"storage": {"size": "4Gi", "storageClassName": "fast"}})
    )


@pytest.mark.parametrize("spec", [{}, STORAGE], ids=["in memory", "with logs"])
@pytest.mark.parametrize("segments", [1, 3])
def test_where_it_is_not_given_a_pod_serves_one_segment_and_is_the_same_to_the_byte(segments: int, spec: Any) -> None:
    """So the field's removal replaces no pod."""
    absent, one = (
        children_of(stream(segments, **spec, publishers=given), SETTINGS) for given in ({}, {"segmentsPerPod": 1})
    )
    assert json.dumps(absent) == json.dumps(one)
    assert sum(item["kind"] == "Pod" for item in absent) == segments


def test_drawing_twice_gives_the_same() -> None:
    assert children_of(stream(3, **STORAGE), SETTINGS) == children_of(stream(3, **STORAGE), SETTINGS)
