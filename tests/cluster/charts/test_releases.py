"""The chart on a real cluster: install, test, upgrade, roll-back, two side by side, and what an uninstall leaves."""

from collections.abc import Callable

from tests.cluster.charts.conftest import Release
from tests.cluster.harness.kubernetes import Kubernetes, eventually

STREAM = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "first"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}
KINDS = (
    "pods,services,deployments,jobs,leases,networkpolicies,persistentvolumeclaims,poddisruptionbudgets,"
    "roles,rolebindings,serviceaccounts"
)


def uids(release: Release) -> set[str]:
    return {release.pod(part)["metadata"]["uid"] for part in ("catalog", "operator")}


def settings(release: Release) -> dict[str, str]:
    (container,) = release.pod("catalog")["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def test_a_release_is_installed_tested_upgraded_rolled_back_and_leaves_nothing(
    cluster: Kubernetes, releases: Callable[[str], Release]
):
    release = releases("one")
    release.deploy()
    assert "the epoch came back whole" in release.test()
    assert release.get("streams") == [], "the test's Stream has gone with it"

    cluster.apply(STREAM, namespace=release.namespace)
    cluster.wait("stream/first", "condition=Ready", release.namespace, timeout=120)
    publisher = cluster.get("pod", "first-0", namespace=release.namespace)["metadata"]["uid"]

    before = uids(release)
    release.deploy()
    assert uids(release) == before, "an upgrade that changes nothing restarts nothing"
    release.deploy(catalog={"leaseTtl": 11})
    assert settings(release)["EPOCHAL_CATALOG_LEASE_TTL"] == "11"
    assert len(uids(release) & before) == 1, "the operator stays"
    release.roll_back()
    assert settings(release)["EPOCHAL_CATALOG_LEASE_TTL"] == "10"
    assert "the epoch came back whole" in release.test()
    assert cluster.get("pod", "first-0", namespace=release.namespace)["metadata"]["uid"] == publisher
    assert release.errors() == []

    release.uninstall()
    eventually(lambda: len(release.get("pods")) == 1)
    left = {each["metadata"]["name"]: each["metadata"].get("ownerReferences") for each in release.get(KINDS)}
    assert left.pop("default") is None, "every namespace's own service account"
    assert "first-0" in left, "Streams and their publishers stay with the definition"
    assert {owner["kind"] for owners in left.values() for owner in owners} == {"Stream"}
    cluster.kubectl("delete", "stream", "first", "-n", release.namespace, "--timeout=30s")  # nothing holds it
    eventually(lambda: [each["metadata"]["name"] for each in release.get(KINDS)] == ["default"])
    assert cluster.find("customresourcedefinition", "streams.epochal.dev")
    for kind in ("clusterroles", "clusterrolebindings"):
        names = [each["metadata"]["name"] for each in cluster.get(kind)["items"]]
        assert not [name for name in names if name.startswith(release.namespace)]


def test_two_releases_side_by_side_serve_their_own_streams(cluster: Kubernetes, releases: Callable[[str], Release]):
    pair = [releases("one"), releases("two")]
    for each in pair:
        each.deploy()
    for each in pair:
        cluster.apply(STREAM, namespace=each.namespace)
    for each in pair:
        cluster.wait("stream/first", "condition=Ready", each.namespace, timeout=120)
        (container,) = cluster.get("pod", "first-0", namespace=each.namespace)["spec"]["containers"]
        told = {item["name"]: item["value"] for item in container["env"]}
        assert told["EPOCHAL_PUBLISHER_CATALOG"] == f"http://{each.name}-epochal-catalog.{each.namespace}.svc:8700"
        assert "the epoch came back whole" in each.test()
    for each in pair:
        assert each.errors() == []
