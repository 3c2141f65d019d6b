"""Injection of sidecars: where the chart renders its policies. tests/cluster/api tries what they do."""

import pytest
from tests.charts.rendering import EVERYTHING, INJECTION, HelmError, Object, find, nested, render

POLICY, BINDING = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
ON = nested("sidecar.inject", True)


def kinds(objects: list[Object]) -> set[str]:
    return {each["kind"] for each in objects}


def test_nothing_is_injected_unless_asked():
    assert not [kind for kind in kinds(render()) if "Admission" in kind]
    assert {POLICY, BINDING, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} < kinds(render(ON))


def test_where_kubernetes_cannot_inject_helm_says_what_to_use_instead():
    with pytest.raises(HelmError, match=r"from 1\.36 on.*driver-sidecar\.yaml and executor-sidecar\.yaml"):
        render(ON, flags=())
    with pytest.raises(HelmError, match="MutatingAdmissionPolicy"):
        render(ON, flags=("--kube-version", "1.35"))
    for flags in ((), INJECTION):
        render(flags=flags)


def test_bindings_lead_to_their_policies_in_the_namespaces_that_are_served():
    for values, served in ((ON, None), (EVERYTHING, EVERYTHING["watchNamespaces"])):
        objects = render(values)
        for kind in (POLICY, "ValidatingAdmissionPolicy"):
            spec = find(objects, f"{kind}Binding", "-sidecar")["spec"]
            assert spec["policyName"] == find(objects, kind, "-sidecar")["metadata"]["name"]
            namespaces = spec.get("matchResources", {}).get("namespaceSelector")
            assert namespaces == (served and {"matchExpressions": [among(served)]})


def among(namespaces: list[str]) -> Object:
    return {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}


def test_only_new_pods_that_ask_for_it_are_looked_at():
    match = find(render(ON), POLICY, "-sidecar")["spec"]["matchConstraints"]
    assert match["objectSelector"] == {"matchLabels": {"epochal.dev/inject": "true"}}
    assert [(rule["resources"], rule["operations"]) for rule in match["resourceRules"]] == [(["pods"], ["CREATE"])]


def test_prometheus_finds_the_sidecars_of_injection_and_of_templates():
    monitor = find(render(EVERYTHING), "PodMonitor", "-sidecars")["spec"]
    assert monitor["selector"] == {"matchLabels": {"epochal.dev/sidecar": "true"}}
    assert monitor["podMetricsEndpoints"][0]["port"] == "epochal-sidecar"
    assert monitor["namespaceSelector"] == {"matchNames": EVERYTHING["watchNamespaces"]}
    assert not [
        each for each in render(nested("metrics.podMonitor.enabled", True)) if "sidecars" in str(each["metadata"])
    ]
