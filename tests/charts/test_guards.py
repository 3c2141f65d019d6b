"""Who may do what: the operator's rights in Kubernetes, and who may connect to what."""

import json

import pytest
from tests.charts.rendering import EVERYTHING, Object, find, nested, pods, render, selects
from tests.resources.test_cluster_relay import objects as relay_objects
from tests.resources.test_cluster_relay import relay

from epochal.resources.cluster.stream import MONITORING_LABEL

CHILDREN = {
    "pods",
    "deployments",
    "services",
    "persistentvolumeclaims",
    "serviceaccounts",
    "poddisruptionbudgets",
    "networkpolicies",
}
MANAGED = {"get", "list", "watch", "create", "patch", "delete"}


def rights(role: Object) -> dict[str, set[str]]:
    """The verbs of a role by resource."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for resource in rule["resources"]:
            assert resource not in found, "said once"
            found[resource] = set(rule["verbs"])
    return found


def test_the_operator_has_the_rights_that_it_needs_and_no_other():
    role = find(render(), "ClusterRole", "-operator")
    assert rights(role) == {
        "streams": {"get", "list", "watch", "patch"},
        "relays": MANAGED,
        **{f"{each}/status": {"patch"} for each in ("streams", "relays")},
        **{f"{each}/finalizers": {"update"} for each in ("streams", "relays")},
        "events": {"create", "list"},
        **dict.fromkeys(CHILDREN, MANAGED),
    }


def test_nothing_is_granted_by_a_wildcard_and_no_secret_can_be_read():
    for values in ({}, EVERYTHING):
        for each in render(values):
            for rule in each.get("rules", []):
                text = json.dumps(rule)
                assert "*" not in text
                assert "secrets" not in text
                assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_with_named_namespaces_no_right_reaches_beyond_them():
    objects = render({"watchNamespaces": ["epochal", "demo"], "rbac": {"aggregate": False}})
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    operators = [each for each in objects if each["kind"] == "Role" and each["metadata"]["name"].endswith("-operator")]
    assert {each["metadata"]["namespace"] for each in operators} == {"epochal", "demo"}
    cluster = rights(find(render(), "ClusterRole", "-operator"))
    for role in operators:
        assert rights(role) == cluster


def test_the_operator_has_its_lease_and_no_other():
    objects = render(release="x")
    (role,) = [each for each in objects if each["metadata"]["name"].endswith("-lease") and each["kind"] == "Role"]
    named, unnamed = role["rules"]
    lease = find(objects, "Lease", "-operator")["metadata"]["name"]
    assert (named["resourceNames"], named["verbs"]) == ([lease], ["get", "update"])
    assert (unnamed["resources"], unnamed["verbs"]) == (["leases"], ["create"])
    (container,) = find(objects, "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert {"name": "EPOCHAL_OPERATOR_LEASE_NAME", "value": lease} in container["env"]


def test_what_takes_finalizers_off_may_do_that_alone():
    for values, kind in (({}, "ClusterRole"), ({"watchNamespaces": ["demo"]}, "Role")):
        assert rights(find(render(values), kind, "-release")) == {"streams": {"list", "patch"}}


def test_it_runs_once_the_operator_has_gone_and_leaves_nothing():
    hooks = [
        each for each in render() if "post-delete" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    ]
    assert sorted(each["kind"] for each in hooks) == ["ClusterRole", "ClusterRoleBinding", "Job", "ServiceAccount"]
    for each in hooks:
        annotations = each["metadata"]["annotations"]
        assert {"hook-succeeded", "hook-failed"} < set(annotations["helm.sh/hook-delete-policy"].split(","))
        assert annotations.get("helm.sh/hook-weight", "0") == ("0" if each["kind"] == "Job" else "-1"), "rights first"


@pytest.mark.parametrize("watched", [[], ["epochal", "demo"]])
def test_who_gives_the_rights_otherwise_gives_them_to_accounts_of_any_name(watched: list[str]):
    mine = {"create": False, "name": "mine"}
    operator = {"serviceAccount": mine, "releaseStreams": {"serviceAccount": {"create": False, "name": "theirs"}}}
    objects = render({"rbac": {"create": False}, "watchNamespaces": watched, "operator": operator})
    assert not [each for each in objects if each["apiVersion"].startswith("rbac.authorization.k8s.io/")]
    used = {
        (each["kind"], each["spec"]["template"]["spec"]["serviceAccountName"])
        for each in objects
        if each["kind"] in ("Deployment", "Job") and not each["metadata"]["name"].endswith("-catalog")
    }
    assert used == {("Deployment", "mine"), ("Job", "theirs")}
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    assert not accounts & {"mine", "theirs"}


def test_what_takes_finalizers_off_has_an_account_of_its_own_that_goes_with_it():
    account = {"name": "mine", "annotations": {"example.org/note": "kept"}}
    objects = render(nested("operator.releaseStreams.serviceAccount", account))
    annotations = find(objects, "ServiceAccount", "mine")["metadata"]["annotations"]
    assert annotations.keys() > {"helm.sh/hook", "example.org/note"}
    assert find(objects, "ClusterRoleBinding", "-release")["subjects"][0]["name"] == "mine"


def test_a_role_that_may_view_or_edit_may_view_or_edit_streams():
    objects = render()
    view, edit = find(objects, "ClusterRole", "-view"), find(objects, "ClusterRole", "-edit")
    for kind in ("streams", "relays"):  # `kubectl scale --current-replicas=3` reads the sub-resource first
        assert rights(view)[kind] == rights(view)[f"{kind}/scale"] == {"get", "list", "watch"}
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert "streams/status" not in rights(edit), "how a Stream is, only the operator says"


# --- network policies ------------------------------------------------------------------------------------------------


def relay_labels() -> dict[str, str]:
    """The labels of the pods of a Relay."""
    template: Object = relay_objects(relay())["Deployment"]["spec"]["template"]
    return dict(template["metadata"]["labels"])


def test_relays_are_monitored_as_publishers_are():
    monitor = find(render(EVERYTHING), "PodMonitor", "-relays")["spec"]
    assert selects(monitor["selector"], relay_labels())
    publishers = find(render(EVERYTHING), "PodMonitor", "-publishers")["spec"]
    assert not selects(publishers["selector"], relay_labels())
    assert (monitor["podMetricsEndpoints"], monitor["namespaceSelector"]) == (
        publishers["podMetricsEndpoints"],
        publishers["namespaceSelector"],
    )


def policies(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == "NetworkPolicy"]


def test_every_pod_is_closed_but_for_what_is_opened():
    for values in ({}, EVERYTHING):
        objects = render(values)
        closed = find(objects, "NetworkPolicy", "-closed")
        assert "ingress" not in closed["spec"]
        assert closed["spec"]["policyTypes"] == ["Ingress"]
        for name, pod in pods(objects):
            assert selects(closed["spec"]["podSelector"], pod["metadata"]["labels"]), name


def test_who_connects_to_the_catalog_can_be_named():
    catalog = find(render(EVERYTHING), "NetworkPolicy", "-catalog")
    clients, publishers, _ = (rule["from"] for rule in catalog["spec"]["ingress"])
    assert {"podSelector": {"matchLabels": {"client": "yes"}}} in clients
    assert {"namespaceSelector": {}} not in clients
    names = [each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in publishers]
    assert names == ["epochal-publisher", "epochal-relay"]
    assert selects(publishers[1]["podSelector"], relay_labels())
    assert all(rule["ports"] == [{"port": "http"}] for rule in catalog["spec"]["ingress"])


def test_the_releases_own_pods_are_always_let_in():
    objects = render(EVERYTHING)
    catalog = find(objects, "NetworkPolicy", "-catalog")
    own = catalog["spec"]["ingress"][0]["from"][-1]
    assert set(own) == {"podSelector"}, "of the release's namespace"
    for name, pod in pods(objects):
        assert selects(own["podSelector"], pod["metadata"]["labels"]), name


def test_the_test_pod_is_let_in_where_its_stream_is_elsewhere():
    stream = find(render({"watchNamespaces": ["demo"]}), "Stream", "-test")
    assert stream["metadata"]["namespace"] == "demo"
    let_in = [{"serviceAccount": "*", "namespace": "epochal"}]
    assert stream["spec"]["access"] == {"publish": let_in, "subscribe": let_in}
    for watched in ([], ["demo", "epochal"]):
        stream = find(render({"watchNamespaces": watched}), "Stream", "-test")
        assert stream["metadata"]["namespace"] == "epochal"
        assert "access" not in stream["spec"], "the Stream's own namespace is let in"


def test_who_monitors_publishers_monitors_catalog_and_operator_by_the_same_label():
    labelled = {"namespaceSelector": {"matchLabels": {MONITORING_LABEL: "true"}}}
    named = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watchers"}}}
    objects = render(nested("networkPolicy.monitoring", [named]))
    for name, port in ("-catalog", "http"), ("-operator", "metrics"):
        *_, metrics = find(objects, "NetworkPolicy", name)["spec"]["ingress"]
        assert (metrics["from"], metrics["ports"]) == ([named, labelled], [{"port": port}])


def test_without_policies_there_is_none_and_the_operator_makes_none():
    objects = render(nested("networkPolicy.enabled", False))
    assert not policies(objects)
    (container,) = find(objects, "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert {"name": "EPOCHAL_OPERATOR_NETWORK_POLICIES", "value": "false"} in container["env"]
    (container,) = find(render(), "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert {"name": "EPOCHAL_OPERATOR_NETWORK_POLICIES", "value": "true"} in container["env"]
