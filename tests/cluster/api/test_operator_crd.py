"""The definition of a Stream on a real API server: what is refused there, and what kubectl makes of it."""

import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.kubernetes import KubectlError, eventually
from tests.cluster.harness.streams import stream
from tests.resources import test_crd as offline
from tests.resources import test_feasible as feasible
from tests.resources import test_relay as relays
from tests.resources.admission import admitted
from tests.resources.test_cluster_children import PUBLISHERS

from epochal.resources.crd import stream_crd
from epochal.resources.definitions import all_crds

REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "a type": ({"segments": "many"}, "spec.segments"),
    "a negative number": ({"segments": -1}, "should be greater than or equal to 1"),
    "a huge number": ({"segments": 10**9}, "should be less than or equal to"),
    "another number of segments": ({"segments": 3}, "scaling a stream is planned"),
    "another shape": ({"time": {"shape": "(int, int)"}}, "it cannot change while the stream exists"),
    "another encoding": ({"payload": {"encoding": "msgpack"}}, "it cannot change while the stream exists"),
    "no such encoding": ({"payload": {"encoding": "xml"}}, 'Unsupported value: "xml"'),
    "a wrong size": ({"history": {"storage": {"size": "large"}}}, "spec.history.storage.size"),
    "durability without storage": ({"history": {"durability": "batch"}}, "need history.storage"),
    "an unknown field": ({"replicas": 3}, 'unknown field "spec.replicas"'),
    "one address for all": ({"publishers": {"advertise": "streams.example.org"}}, "put {index} in it"),
    "no duration": ({"progress": {"writerTimeout": "soon"}}, "spec.progress.writerTimeout"),
}
"""Changes of a stream of two segments that the API server refuses, with what it says."""


@pytest.fixture(scope="module")
def server(cluster_with_streams: ApiServer) -> ApiServer:
    """With a namespace for these tests."""
    cluster_with_streams.kubectl("create", "namespace", "demo")
    kinds = ("api-resources", "--api-group=epochal.dev", "--cached=false", "-o", "name")
    # It takes the definitions first, and a moment later it lists their kinds.
    eventually(
        lambda: {"streams.epochal.dev", "relays.epochal.dev"} <= set(cluster_with_streams.kubectl(*kinds).split())
    )
    return cluster_with_streams


def dry(server: ApiServer, document: dict[str, Any]) -> str:
    """Apply without a trace; what is said."""
    return server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document))


@pytest.mark.parametrize("what", offline.REFUSED)
def test_what_the_model_refuses_is_refused_here_too(server: ApiServer, what: str) -> None:
    with pytest.raises(KubectlError, match=r"invalid|unknown field|strict decoding|must be|Invalid value"):
        dry(server, offline.document(**offline.REFUSED[what]))


@pytest.mark.parametrize("what", feasible.BY_BOTH)
def test_what_can_never_run_is_refused_here_too(server: ApiServer, what: str) -> None:
    with pytest.raises(KubectlError, match=r"is invalid"):
        dry(server, feasible.BY_BOTH[what][0])


@pytest.mark.parametrize("what", [*feasible.TAKEN, *feasible.ONLY_HERE])
def test_what_may_run_is_taken(server: ApiServer, what: str) -> None:
    assert "created" in dry(server, {**feasible.TAKEN, **feasible.ONLY_HERE}[what])


def test_an_address_that_several_publishers_would_share_is_refused(server: ApiServer) -> None:
    shared = offline.document(segments=2, publishers={"advertise": "streams.example.org"})
    with pytest.raises(KubectlError, match=r"spec\.publishers\.advertise.*put \{index\} in it"):
        dry(server, shared)
    assert "created" in dry(server, offline.document(segments=1, publishers={"advertise": "streams.example.org"}))
    packed = {"advertise": "streams.example.org", "segmentsPerPod": 2}
    assert "created" in dry(server, offline.document(segments=2, publishers=packed))


@pytest.mark.parametrize("what", offline.LEFT_TO_THE_MODEL)
def test_what_is_left_to_the_model_is_taken(server: ApiServer, what: str) -> None:
    assert "created" in dry(server, offline.document(**offline.LEFT_TO_THE_MODEL[what]))


def test_amounts_are_taken_as_people_write_them(server: ApiServer) -> None:
    for size in ("1.5Gi", "1500M", 1 << 30, "2Ti"):
        spec: dict[str, Any] = {
            "history": {"storage": {"size": size}, "retention": {"time": "1h30m", "bytes": "0.5Gi"}}
        }
        document = offline.document(**spec, publishers=PUBLISHERS)
        assert admitted(document) == []
        assert "created" in dry(server, document)


def test_what_cannot_change_is_said(server: ApiServer) -> None:
    server.apply(offline.document("fixed"))
    for change, word in (
        ({"time": {"shape": "(int, int)"}}, "it cannot change while the stream exists"),
        ({"payload": {"encoding": "json"}}, "it cannot change while the stream exists"),
        ({"segments": 2}, "scaling a stream is planned"),
    ):
        with pytest.raises(KubectlError, match=word):
            server.apply(offline.document("fixed", **change))
    with pytest.raises(KubectlError, match="scaling a stream is planned"):
        server.kubectl("scale", "stream/fixed", "--replicas=3", "-n", "demo")
    assert "configured" in server.apply(offline.document("fixed", progress={"minWriters": 2}))


@pytest.mark.parametrize("what", REFUSED)
def test_changes_that_are_refused_change_nothing(server: ApiServer, what: str) -> None:
    fields, said = REFUSED[what]
    base = stream("orders", segments=2)
    server.apply(base, namespace="demo")
    before = server.get("stream", "orders", namespace="demo")
    with pytest.raises(KubectlError) as refusal:
        server.apply({**base, "spec": {**base["spec"], **fields}}, namespace="demo")
    assert said in str(refusal.value)
    assert server.get("stream", "orders", namespace="demo") == before


@pytest.mark.parametrize("name", ["Orders", "ordérs", "o" * 53, "1orders", "a.b", "orders-"])
def test_names_that_pods_could_not_have_are_refused(server: ApiServer, name: str) -> None:
    with pytest.raises(KubectlError, match=r"Invalid|invalid"):
        server.apply(stream(name), namespace="demo")


def test_a_default_that_an_earlier_definition_stored_stays(api_servers: Callable[..., ApiServer]) -> None:
    """The upgrade of the definition, and the same manifest applied again, change nothing of the object."""
    server = api_servers()
    earlier = stream_crd()
    [version] = earlier["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["publishers"]["properties"]["segmentsPerPod"]["default"] = 1
    server.define(yaml.safe_dump(earlier))
    server.kubectl("create", "namespace", "demo")
    server.apply(offline.document("old", segments=3))

    def found(name: str) -> tuple[Any, int]:
        stream = server.get("stream", name, namespace="demo")
        return stream["spec"]["publishers"].get("segmentsPerPod"), stream["metadata"]["generation"]

    assert found("old") == (1, 1)
    server.define(all_crds())
    numbers = itertools.count()

    def upgraded() -> bool:
        name = f"new-{next(numbers)}"
        server.apply(offline.document(name, segments=3))
        return found(name) == (None, 1)

    eventually(upgraded)
    assert "unchanged" in server.apply(offline.document("old", segments=3))
    assert found("old") == (1, 1)
    assert "configured" in server.apply(offline.document("old", segments=3, progress={"minWriters": 2}))
    assert found("old") == (1, 2)


@pytest.mark.parametrize("what", relays.REFUSED)
def test_what_the_model_refuses_of_a_relay_is_refused_here_too(server: ApiServer, what: str) -> None:
    spec, word = relays.REFUSED[what]
    with pytest.raises(KubectlError, match=re.escape(word)):
        dry(server, relays.document(**spec))


def test_a_relay_is_explained_listed_and_scaled(server: ApiServer) -> None:
    assert "What they follow" in server.kubectl("explain", "rly.spec.upstream")
    server.apply(relays.document("scaled"), relays.document("scaling", autoscaling={"max": 3}))
    listed = server.kubectl("get", "relays", "-n", "demo").splitlines()
    assert listed[0].split() == ["NAME", "STREAM", "REPLICAS", "READY", "DEGRADED", "SUBSCRIBERS", "AGE"]
    server.kubectl("scale", "relay/scaled", "--replicas=3", "-n", "demo")
    assert server.get("relay", "scaled", namespace="demo")["spec"]["replicas"] == 3
    with pytest.raises(KubectlError, match="replicas and autoscaling cannot be together"):
        server.kubectl("scale", "relay/scaling", "--replicas=3", "-n", "demo")
    with pytest.raises(KubectlError, match="cannot change"):
        server.apply(relays.document("scaled", stream="other"))


def test_kubectl_explains_and_lists_it(server: ApiServer) -> None:
    assert "The shape of a time" in server.kubectl("explain", "stream.spec.time.shape")
    assert "storage\t<Object>" in server.kubectl("explain", "stream.spec.history")
    assert "<no description>" not in server.kubectl("explain", "stream.spec", "--recursive=false")
    assert "Ready, Progressing and Degraded" in server.kubectl("explain", "strm.status.conditions")
    server.apply(offline.document("shown"))
    listed = server.kubectl("get", "streams", "-n", "demo").splitlines()
    assert listed[0].split() == ["NAME", "SEGMENTS", "SERVING", "READY", "DEGRADED", "FRONTIER", "AGE"]
    assert any(line.startswith("shown ") for line in listed)
    assert "shown" in server.kubectl("get", "epochal", "-n", "demo")
