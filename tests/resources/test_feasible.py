"""What can never run is refused when declared, by `epochal apply` and `kubectl apply` alike; stored it is read."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resources.admission import admitted
from tests.resources.test_crd import document
from tests.resources.test_relay import document as relay

from epochal.errors import ManifestError
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import StreamManifest
from epochal.resources.relay import RelayManifest

Object = dict[str, Any]


def refused(found: Object) -> dict[str, str]:
    """Path and reason of what is wrong with a manifest that is read all the same."""
    model = RelayManifest if found["kind"] == "Relay" else StreamManifest
    manifest = model.from_document(found)
    try:
        check_feasible(manifest)
    except ManifestError as error:
        return {problem.path: problem.reason for problem in error.problems}
    return {}


def on_disk(size: object, kept: object = None, **history: Any) -> Object:
    retention = {} if kept is None else {"retention": {"bytes": kept}}
    return document(history={"storage": {"size": size}, **retention, **history})


def publishers(segments: int = 1, kept: str = "1Mi", **fields: Any) -> Object:
    return document(segments=segments, history={"retention": {"bytes": kept}}, publishers=fields)


def limited(memory: object, **more: Any) -> Object:
    return publishers(resources={"limits": {"memory": memory}}, **more)


TOLERATIONS = "spec.publishers.tolerations[0]"
BY_BOTH: dict[str, tuple[Object, str]] = {
    "more history than the volume has": (on_disk("1Gi", "2Gi"), "spec.history.retention.bytes"),
    "also as numbers": (on_disk(2**30, 2**31), "spec.history.retention.bytes"),
    "more history by default": (on_disk("100Mi"), "spec.history.retention.bytes"),
    "a little memory": (limited("16Mi"), "spec.publishers.resources.limits.memory"),
    "memory in thousandths": (limited("128000m"), "spec.publishers.resources.limits.memory"),
    "memory as a number": (limited(16 << 20), "spec.publishers.resources.limits.memory"),
    "memory below the history in it": (limited("512Mi", kept="1Gi"), "spec.publishers.resources.limits.memory"),
    "memory below that of several segments": (
        limited("512Mi", kept="256Mi", segments=3, segmentsPerPod=2),
        "spec.publishers.resources.limits.memory",
    ),
    "a request above the limit": (
        publishers(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}),
        "spec.publishers.resources.requests.cpu",
    ),
    "an account that is none": (
        document(access={"publish": [{"serviceAccount": "A_B"}]}),
        "spec.access.publish[0].serviceAccount",
    ),
    "a pattern of accounts": (
        document(access={"subscribe": [{"serviceAccount": "spark-*"}]}),
        "spec.access.subscribe[0].serviceAccount",
    ),
    "a storage class that is none": (
        document(history={"storage": {"size": "1Gi", "storageClassName": "Fast_SSD"}}),
        "spec.history.storage.storageClassName",
    ),
    "a node's label that is none": (publishers(nodeSelector={"disk": "a b"}), "spec.publishers.nodeSelector.disk"),
    "a value of what needs none": (
        publishers(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        f"{TOLERATIONS}.value",
    ),
    "no key": (publishers(tolerations=[{"value": "b"}]), f"{TOLERATIONS}.key"),
    "a key that is none": (publishers(tolerations=[{"key": "a b"}]), f"{TOLERATIONS}.key"),
    "seconds without NoExecute": (
        publishers(tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}]),
        f"{TOLERATIONS}.tolerationSeconds",
    ),
    "a relay with a little memory": (relay(resources={"limits": {"memory": "16Mi"}}), "spec.resources.limits.memory"),
    "a relay whose buffer does not fit": (
        relay(bufferBytes="1Gi", resources={"limits": {"memory": "512Mi"}}),
        "spec.resources.limits.memory",
    ),
    "a relay's toleration": (relay(tolerations=[{}]), "spec.tolerations[0].key"),
}


@pytest.mark.parametrize("what", BY_BOTH)
def test_what_can_never_run_is_refused_by_both(what: str) -> None:
    found, path = BY_BOTH[what]
    assert list(refused(found)) == [path]
    assert admitted(found)


TAKEN: dict[str, Object] = {
    "as much history as the volume has": on_disk("1Gi", "1Gi"),
    "another form of the same": on_disk("1Gi", 2**30),
    "no history": on_disk("1Mi", retention={"mode": "none"}),
    "history in memory": on_disk("1Mi", durability="memory"),
    "memory for the history in it": limited("320Mi", kept="256Mi"),
    "memory for all segments": limited("320Mi", kept="128Mi", segments=2, segmentsPerPod=8),
    "history on disk": document(
        history={"storage": {"size": "4Gi"}, "retention": {"bytes": "2Gi"}},
        publishers={"resources": {"limits": {"memory": "256Mi"}}},
    ),
    "a limit of a processor alone": publishers(resources={"limits": {"cpu": "500m"}}),
    "more of one thing and less of another": publishers(
        resources={"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    ),
    "accounts": document(access={"publish": [{"serviceAccount": "*"}, {"serviceAccount": "spark.jobs-1"}]}),
    "a storage class": document(history={"storage": {"size": "1Gi", "storageClassName": "fast.ssd-1"}}),
    "labels": publishers(nodeSelector={"kubernetes.io/os": "linux", "gpu": ""}),
    "tolerations": publishers(
        tolerations=[
            {"operator": "Exists"},
            {"key": "a.example/b", "value": "x", "effect": "NoExecute", "tolerationSeconds": 3},
        ]
    ),
    "relays": relay(resources={"limits": {"memory": "128Mi"}}),
}


@pytest.mark.parametrize("what", TAKEN)
def test_what_may_run_is_taken_by_both(what: str) -> None:
    assert refused(TAKEN[what]) == {}
    assert admitted(TAKEN[what]) == []


# What the definition takes: it would have to walk names without a bound. The catalog refuses it, as a condition.
ONLY_HERE: dict[str, Object] = {
    "a resource that is none": publishers(resources={"requests": {"mem": "1Gi"}}),
    "a label's name that is none": publishers(nodeSelector={"a b": "c"}),
}


@pytest.mark.parametrize("what", ONLY_HERE)
def test_what_the_definition_cannot_say(what: str) -> None:
    assert refused(ONLY_HERE[what])
    assert admitted(ONLY_HERE[what]) == []


amounts = st.builds("{}{}".format, st.integers(1, 2000), st.sampled_from(["", "m", "k", "Ki", "Mi", "Gi", "M"]))
kept = st.builds("{}{}".format, st.integers(2, 900), st.sampled_from(["Mi", "Gi", "M"]))


@settings(max_examples=200)
@given(
    amounts | st.integers(1, 2**31), amounts | st.none(), kept, kept, st.integers(1, 4), st.integers(1, 5) | st.none(),
    st.sampled_from(["auto", "batch", "memory"]), st.booleans(), st.sampled_from(["keep", "none"]),
)  # fmt: skip
def test_the_definition_and_this_agree(
    limit: object, request: object, bytes_: str, size: str, segments: int, packed: int | None, durability: str,
    stored: bool, mode: str,
) -> None:  # fmt: skip
    history: Object = {"retention": {"bytes": bytes_, "mode": mode}}
    if stored:
        history |= {"storage": {"size": size}, "durability": durability}
    resources: Object = {"limits": {"memory": limit}}
    if request is not None:
        resources["requests"] = {"memory": request}
    wishes: Object = {"resources": resources} | ({} if packed is None else {"segmentsPerPod": packed})
    found = document(segments=segments, history=history, publishers=wishes)
    assert bool(refused(found)) == bool(admitted(found))


def test_of_several_manifests_each_problem_says_whose_it_is() -> None:
    manifests = [StreamManifest.from_document(found) for found in (limited("16Mi"), on_disk("1Gi"), on_disk("1Mi"))]
    with pytest.raises(ManifestError, match="can never run") as caught:
        check_feasible(*manifests)
    assert [problem.path.partition(": ")[0] for problem in caught.value.problems] == ["Stream demo/flights"] * 2
