"""What `helm install` gives: as the documentation types it, and as kubectl shows it."""

import json

import pytest
import yaml
from tests.cluster.harness.kubernetes import KubectlError, eventually
from tests.cluster.harness.places import ROOT
from tests.cluster.harness.release import CHART, CRDS, POD_PATIENCE, RESTRICTED
from tests.cluster.harness.streams import KINDS, Streams, stream

EXAMPLE = ROOT / "examples" / "flights.yaml"


def test_the_example_becomes_ready_and_kubectl_shows_it(cluster, release, streams):
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["namespace"] = streams.namespace
    streams.apply(document)
    cluster.wait("stream/flights", "condition=Ready", streams.namespace, POD_PATIENCE)
    head, row = cluster.kubectl("get", "strm", "-n", streams.namespace).splitlines()
    assert head.split() == ["NAME", "SEGMENTS", "SERVING", "READY", "DEGRADED", "FRONTIER", "AGE"]
    assert row.split()[:5] == ["flights", "3", "3", "True", "False"]
    wide = cluster.kubectl("get", "epochal", "-n", streams.namespace, "-o", "wide")
    assert "Serving" in wide
    assert "msgpack" in wide


def test_what_a_stream_has(streams):
    streams.start(stream("orders", segments=2))
    kinds = sorted(f"{item['kind']} {item['metadata']['name']}" for item in streams.children("orders"))
    assert kinds == [
        "NetworkPolicy orders-publisher",
        "PersistentVolumeClaim orders-0",
        "PersistentVolumeClaim orders-1",
        "Pod orders-0",
        "Pod orders-1",
        "PodDisruptionBudget orders-publisher",
        "Service orders",
        "ServiceAccount orders-publisher",
    ]
    uid = streams.get("orders")["metadata"]["uid"]
    assert {owner["uid"] for item in streams.children("orders") for owner in item["metadata"]["ownerReferences"]} == {
        uid
    }
    found = streams.get("orders")["status"]
    assert (found["segments"], found["readySegments"], found["notInEffect"]) == (2, 2, [])


def test_a_namespace_of_restricted_pods_takes_publishers(cluster, release, namespaces):
    streams = Streams(cluster, namespaces(RESTRICTED))
    streams.start(stream("orders"))


def test_helm_test_publishes_and_reads_back(cluster, release):
    assert "the epoch came back whole" in release.test()

    def left() -> list[str]:
        names = cluster.kubectl("get", KINDS, "-n", release.namespace, "-o", "name").splitlines()
        return [name for name in names if "epochal-test" in name]

    eventually(lambda: not left(), POD_PATIENCE)


def test_the_notes_lead_to_a_first_stream(cluster, release):
    notes = cluster.helm("get", "notes", release.name, "--namespace", release.namespace)
    assert release.catalog_url in notes
    assert "kubectl wait --for=condition=Ready stream/first" in notes
    manifest = notes.partition("<<END\n")[2].partition("\nEND")[0]
    cluster.kubectl("create", "--dry-run=server", "-f", "-", "-n", "default", stdin=_in_default(manifest))
    assert "Network policies are the only guard" in notes


def _in_default(manifest: str) -> str:
    document = yaml.safe_load(manifest)
    del document["metadata"]["namespace"]
    return json.dumps(document)


def test_a_wrong_value_is_refused_before_anything_is_installed(cluster, release):
    with pytest.raises(KubectlError, match="additional properties 'catalogue' not allowed"):
        cluster.helm("install", "other", str(CHART), "--namespace", "default", "--set=catalogue.size=1Gi")


@pytest.mark.parametrize("name", CRDS)
def test_the_definition_is_that_of_the_chart(cluster, release, name):
    shipped = yaml.safe_load((CHART / "files" / f"{name}.yaml").read_text())
    found = cluster.get("crd", name)
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert [item["name"] for item in found["spec"]["versions"]] == [
        item["name"] for item in shipped["spec"]["versions"]
    ]
    assert found["spec"]["names"] == shipped["spec"]["names"]
