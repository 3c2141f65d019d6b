"""Network policies on the node: what they allow and what they stop, from their meaning to real connections."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.cluster.harness.busybox import busybox_image
from tests.cluster.harness.kubernetes import KubectlError, Kubernetes, eventually
from tests.cluster.harness.pods import pod, server
from tests.cluster.harness.policies import Pod, rules, selects

A = Pod("one", "10.244.0.5", {"app": "a"}, {("TCP", "http"): 8704})
B = Pod("one", "10.244.0.6", {"app": "b"}, {})
C = Pod("two", "10.244.0.7", {"app": "b"}, {("TCP", "http"): 9000})
NAMESPACES: Mapping[str, Mapping[str, str]] = {"one": {"team": "x"}, "two": {"team": "y"}}


def policy(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "one"}, "spec": spec}


def chain(text: str, name: str) -> list[str]:
    """The lines of one chain."""
    return [line.strip() for line in text.partition(f"chain {name} {{\n")[2].partition("\n}")[0].splitlines()]


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ({}, ["return"]),
        ({"ports": [{"port": 8701, "endPort": 8703}]}, ["tcp dport 8701-8703 return"]),
        ({"ports": [{"port": "http"}, {"port": "none"}]}, ["tcp dport 8704 return"]),
        ({"ports": [{"protocol": "UDP"}]}, ["meta l4proto udp return"]),
        ({"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}, ["ip saddr 10.244.0.6 return"]),
        ({"from": [{"namespaceSelector": {"matchLabels": {"team": "y"}}}]}, ["ip saddr 10.244.0.7 return"]),
        (
            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "b"}}}]},
            ["ip saddr 10.244.0.6 return", "ip saddr 10.244.0.7 return"],
        ),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 1}]},
            ["ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16 } tcp dport 1 return"],
        ),
        ({"from": [{"podSelector": {"matchLabels": {"app": "none"}}}]}, []),
    ],
)
def test_what_a_rule_lets_in(rule, lines):
    text = rules([policy({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [rule]})], [A, B, C], NAMESPACES)
    assert chain(text, "ingress-10-244-0-5") == [*lines, "drop"]
    assert "egress" not in text
    assert "ingress-10-244-0-6" not in text


def test_an_empty_selector_isolates_every_pod_of_its_namespace_and_no_other():
    text = rules([policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})], [A, B, C], NAMESPACES)
    for name in ("ingress-10-244-0-5", "egress-10-244-0-5", "ingress-10-244-0-6", "egress-10-244-0-6"):
        assert chain(text, name) == ["drop"]
    assert "10-244-0-7" not in text


def test_a_named_port_on_the_way_out_is_that_of_the_pod_spoken_to():
    everybody = {"to": [{"namespaceSelector": {}}], "ports": [{"port": "http"}]}
    text = rules([policy({"podSelector": {"matchLabels": {"app": "b"}}, "egress": [everybody]})], [A, B, C], NAMESPACES)
    expected = ["ip daddr 10.244.0.5 tcp dport 8704 return", "ip daddr 10.244.0.7 tcp dport 9000 return", "drop"]
    assert chain(text, "egress-10-244-0-6") == expected


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["a"], True),
        ("In", ["b"], False),
        ("NotIn", ["b"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_expressions_of_selectors(operator, values, selected):
    expression = {"key": "app", "operator": operator, "values": values}
    assert selects({"matchExpressions": [expression]}, {"app": "a"}) is selected


def _answer(cluster: Kubernetes, namespace: str, who: str, address: str) -> str | None:
    try:
        ask = ("timeout", "3", "wget", "-q", "-O", "-", f"http://{address}:8080/")
        return cluster.kubectl("exec", "-n", namespace, who, "--", *ask)
    except KubectlError:
        return None


def test_only_the_pods_that_a_policy_names_get_through(cluster, own_node, namespace):
    cluster.import_image(busybox_image())
    guests = {"matchLabels": {"guest": "yes"}}
    spec = {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"from": [{"podSelector": guests}]}]}
    wall = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "wall"}, "spec": spec}
    cluster.apply(
        server(), pod("guest", "sleep 600", {"guest": "yes"}), pod("stranger", "sleep 600"), namespace=namespace
    )
    cluster.kubectl("wait", "pod", "--all", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
    address = cluster.get("pod", "server", namespace=namespace)["status"]["podIP"]
    assert _answer(cluster, namespace, "stranger", address) == "good day\n"
    cluster.apply(wall, namespace=namespace)
    eventually(lambda: _answer(cluster, namespace, "stranger", address) is None)
    assert _answer(cluster, namespace, "guest", address) == "good day\n"
    cluster.kubectl("delete", "networkpolicy", "wall", "-n", namespace)
    eventually(lambda: _answer(cluster, namespace, "stranger", address))


def test_a_policy_for_the_way_out_holds_towards_the_api_server_and_dns(cluster, own_node, namespace):
    cluster.import_image(busybox_image())
    shut = {"podSelector": {}, "policyTypes": ["Egress"]}
    wall = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "wall"}, "spec": shut}
    cluster.apply(pod("within", "sleep 600"), namespace=namespace)
    cluster.wait("pod/within", "condition=Ready", namespace)

    def reached(*ask: str) -> bool:
        try:
            cluster.kubectl("exec", "-n", namespace, "within", "--", "timeout", "3", *ask)
        except KubectlError:
            return False
        return True

    asks = (
        ("nc", "-w", "2", "kubernetes.default.svc", "443", "-e", "true"),
        ("nslookup", "kubernetes.default.svc.cluster.local"),
    )
    assert [reached(*ask) for ask in asks] == [True, True]
    cluster.apply(wall, namespace=namespace)
    eventually(lambda: not any(reached(*ask) for ask in asks))
