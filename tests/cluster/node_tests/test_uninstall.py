"""Releases that go, and releases side by side: what stays, and who serves whom."""

from collections.abc import Iterator

import pytest
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.release import AS_SHIPPED, CRDS, POD_PATIENCE, RESTRICTED, Release
from tests.cluster.harness.streams import Streams, stream
from tests.cluster.harness.toolbox import Toolbox

OURS = "clusterroles,clusterrolebindings,customresourcedefinitions,priorityclasses"
"""Kinds that belong to no namespace; rights are what a release may leave there."""
KINDS = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,persistentvolumeclaims,networkpolicies"
KINDS += ",poddisruptionbudgets,leases,jobs"


def left_in(cluster: Kubernetes, namespace: str) -> list[str]:
    """What is in a namespace, but for what every namespace has."""
    names = cluster.kubectl("get", KINDS, "-n", namespace, "-o", "name").split()
    return sorted(set(names) - {"configmap/kube-root-ca.crt", "serviceaccount/default"})


def left_in_the_cluster(cluster: Kubernetes) -> list[str]:
    """What is in no namespace and of the chart."""
    return cluster.kubectl("get", OURS, "-l", "app.kubernetes.io/part-of=epochal", "-o", "name").split()


def test_an_uninstall_leaves_nothing_but_the_definition_and_the_streams(cluster, release, namespaces):
    """As users call it, with the settings that they have."""
    release.upgrade(AS_SHIPPED)
    streams = Streams(cluster, namespaces())
    streams.start(stream("orders"))
    release.uninstall("background")
    eventually(lambda: left_in(cluster, release.namespace) == [], POD_PATIENCE)
    assert left_in_the_cluster(cluster) == [f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in CRDS]
    found = streams.get("orders")
    assert "finalizers" not in found["metadata"]
    assert list(streams.pods("orders")) == ["orders-0"], "it serves on"
    streams.delete("orders")  # nobody is needed for that
    streams.gone("orders")


def test_an_install_takes_up_what_was_left(cluster, release, namespaces):
    """With the catalog's volume gone the streams are others now, without what the old ones held."""
    streams, name = Streams(cluster, namespaces()), "orders"
    streams.start(stream(name))
    toolbox = Toolbox(cluster, streams.namespace)
    qualified = f"{streams.namespace}/{name}"
    toolbox.publish(qualified, 1, "before")
    known = streams.get(name)["status"]["catalogUid"]
    release.uninstall()
    release.ensure()
    eventually(lambda: streams.get(name)["status"]["catalogUid"] != known, POD_PATIENCE)
    streams.settled(name)
    toolbox.publish(qualified, 5, "after")
    assert toolbox.epochs(qualified, 1) == {5: ["after"]}


def test_with_the_catalogs_volume_an_install_goes_on_where_the_last_one_was(cluster, release, namespaces):
    streams, name = Streams(cluster, namespaces()), "orders"
    release.upgrade({"catalog.persistence.keep": "true"})
    streams.start(stream(name))
    toolbox = Toolbox(cluster, streams.namespace)
    qualified = f"{streams.namespace}/{name}"
    toolbox.publish(qualified, 1, "before")
    pods = {pod["metadata"]["uid"] for pod in streams.pods(name).values()}
    release.uninstall()
    release.ensure()
    streams.settled(name)
    toolbox.publish(qualified, 2, "after")
    assert toolbox.epochs(qualified, 2) == {1: ["before"], 2: ["after"]}
    assert {pod["metadata"]["uid"] for pod in streams.pods(name).values()} == pods, "nobody was restarted"


@pytest.fixture
def two(cluster: Kubernetes, no_release: Release, namespaces) -> Iterator[list[Release]]:
    """Two releases, each for a namespace of its own, where it lives itself; the second one has no definition."""
    _delete_definition(cluster)  # it is the other release's
    found = []
    for number, more in enumerate(({}, {"crds.enabled": "false"})):
        namespace = namespaces(RESTRICTED)
        values = {"watchNamespaces": f"{{{namespace}}}", "rbac.aggregate": "false", **more}
        found.append(Release(cluster, f"epochal-{number}", namespace, values))
        found[-1].ensure()
    yield found
    for release in found:
        release.uninstall()
    _delete_definition(cluster)


def _delete_definition(cluster: Kubernetes) -> None:
    cluster.kubectl(
        "delete", "crd", *CRDS, "--ignore-not-found", f"--timeout={POD_PATIENCE:.0f}s", timeout=POD_PATIENCE + 10
    )


def test_two_releases_serve_a_namespace_each_and_one_goes_without_the_other(cluster, two):
    one, other = two
    first, second = Streams(cluster, one.namespace), Streams(cluster, other.namespace)
    for streams in (first, second):
        streams.start(stream("orders"))
    for release, streams in zip(two, (first, second), strict=True):
        toolbox = Toolbox(cluster, streams.namespace, release.catalog_url)
        toolbox.publish(f"{streams.namespace}/orders", 1, release.name)
        assert toolbox.epochs(f"{streams.namespace}/orders", 1) == {1: [release.name]}
        listed = toolbox.epochal("get", "streams", "-A", "-o", "name").split()
        assert listed == [f"stream/{streams.namespace}/orders"], "each catalog knows its own only"
        assert "the epoch came back whole" in release.test()
    other.uninstall()
    uids = {name: pod["metadata"]["uid"] for name, pod in first.pods("orders").items()}
    cluster.kubectl("delete", "pod", "orders-0", "-n", one.namespace)
    eventually(
        lambda: first.pods("orders").get("orders-0", {}).get("metadata", {}).get("uid") not in (None, *uids.values())
    )
    first.settled("orders")
    assert "finalizers" not in second.get("orders")["metadata"]
