"""Network policies, enforced: what they allow between pods is turned into rules of the node's own firewall.

The node's network plugin enforces none, and without enforcement only users would find a policy that forgets a client or
lets in too many. Changes take effect within a second; open connections are left alone. Traffic from pods to the API
server is filtered too, because on other clusters it is on another machine than the pods.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.looking import Api, repeat
from tests.cluster.harness.settings import Layout

Document = Mapping[str, Any]
_TABLE = "ip policies"


@dataclass(frozen=True, slots=True)
class Pod:
    """What a policy can know about a pod."""

    namespace: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[tuple[str, str], int]
    """By protocol and name."""


def rules(policies: Sequence[Document], pods: Sequence[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> str:
    """The whole table as a script for nft, which puts it in place of the present one at once.

    Args:
        policies: NetworkPolicy documents.
        pods: Every pod that has an address of its own.
        namespaces: The labels of each.
    """
    chains: list[str] = []
    verdicts: dict[str, list[str]] = {"Ingress": [], "Egress": []}
    for pod in pods:
        for direction in verdicts:
            if concerned := [policy for policy in policies if _isolates(policy, direction, pod)]:
                name = f"{direction.lower()}-{pod.address.replace('.', '-')}"
                allowed = [line for policy in concerned for line in _allowed(policy, direction, pod, pods, namespaces)]
                chains.append(_chain(name, [*(f"{line} return" for line in allowed), "drop"]))
                verdicts[direction].append(f"{pod.address} : jump {name}")
    into = [f"ip daddr vmap {{ {', '.join(verdicts['Ingress'])} }}"] if verdicts["Ingress"] else []
    out_of = [f"ip saddr vmap {{ {', '.join(verdicts['Egress'])} }}"] if verdicts["Egress"] else []
    hooks = [_hook("forward", into + out_of), _hook("input", out_of)]
    return "\n".join([f"table {_TABLE}", f"delete table {_TABLE}", f"table {_TABLE} {{", *chains, *hooks, "}\n"])


def _hook(name: str, lines: Iterable[str]) -> str:
    start = [f"type filter hook {name} priority 10; policy accept;", "ct state established,related accept"]
    return _chain(name, [*start, *lines])


def _chain(name: str, lines: Iterable[str]) -> str:
    return "\n".join([f"chain {name} {{", *(f"  {line}" for line in lines), "}"])


def _isolates(policy: Document, direction: str, pod: Pod) -> bool:
    spec = policy["spec"]
    kinds = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    here = policy["metadata"]["namespace"] == pod.namespace
    return here and direction in kinds and selects(spec.get("podSelector", {}), pod.labels)


def _allowed(
    policy: Document, direction: str, pod: Pod, pods: Sequence[Pod], namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """The matches of everything that one policy allows one pod in one direction."""
    key, side = ("from", "saddr") if direction == "Ingress" else ("to", "daddr")
    for rule in policy["spec"].get(direction.lower()) or []:
        peers = rule.get(key)
        if not peers:
            yield from _ports(rule, pod, "")
            continue
        for peer in peers:
            if block := peer.get("ipBlock"):
                if ":" in block["cidr"]:  # nothing here has such an address
                    continue
                hole = f" ip {side} != {{ {', '.join(block['except'])} }}" if block.get("except") else ""
                yield from _ports(rule, pod, f"ip {side} {block['cidr']}{hole} ")
                continue
            for other in pods:
                if _is_peer(peer, policy["metadata"]["namespace"], other, namespaces):
                    target = pod if direction == "Ingress" else other
                    yield from _ports(rule, target, f"ip {side} {other.address} ")


def _is_peer(peer: Document, home: str, pod: Pod, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    wanted = peer.get("namespaceSelector")
    near = pod.namespace == home if wanted is None else selects(wanted, namespaces.get(pod.namespace, {}))
    return near and selects(peer.get("podSelector") or {}, pod.labels)


def _ports(rule: Document, target: Pod, match: str) -> Iterator[str]:
    """A match with each port of a rule; a port's name is looked up in the pod that receives the traffic."""
    if not rule.get("ports"):
        yield match.strip()
    for port in rule.get("ports") or []:
        protocol, wanted = port.get("protocol", "TCP"), port.get("port")
        number = target.ports.get((protocol, wanted)) if isinstance(wanted, str) else wanted
        if wanted is None:
            yield f"{match}meta l4proto {protocol.lower()}"
        elif number is not None:
            last = f"-{port['endPort']}" if "endPort" in port else ""
            yield f"{match}{protocol.lower()} dport {number}{last}"


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; an empty one selects everything."""
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_holds(each, labels) for each in selector.get("matchExpressions") or [])


def _holds(expression: Document, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _pods(documents: Iterable[Document]) -> Iterator[Pod]:
    for document in documents:
        spec, status, metadata = document["spec"], document["status"], document["metadata"]
        ended = status.get("phase") in ("Succeeded", "Failed")
        if "podIP" not in status or spec.get("hostNetwork") or ended:
            continue
        named = {
            (port.get("protocol", "TCP"), port["name"]): port["containerPort"]
            for container in [*spec["containers"], *spec.get("initContainers", [])]
            for port in container.get("ports", [])
            if "name" in port
        }
        yield Pod(metadata["namespace"], status["podIP"], metadata.get("labels", {}), named)


class Enforcer:
    """Puts the rules in force whenever they have changed."""

    def __init__(self) -> None:
        """Nothing is in force yet."""
        self._script = ""

    def look(self, api: Api) -> None:
        """Read everything and act on it; CalledProcessError is raised if nft refuses the rules."""
        namespaces = {
            item["metadata"]["name"]: item["metadata"].get("labels", {})
            for item in api.call("GET", "/api/v1/namespaces")["items"]
        }
        policies = api.call("GET", "/apis/networking.k8s.io/v1/networkpolicies")["items"]
        pods = sorted(_pods(api.call("GET", "/api/v1/pods")["items"]), key=lambda pod: pod.address)
        script = rules(policies, pods, namespaces)
        if script != self._script:
            subprocess.run(["nft", "-f", "-"], input=script, text=True, check=True)
            self._script = script


if __name__ == "__main__":
    repeat(Enforcer().look, Layout(Path(sys.argv[1]), int(sys.argv[2])))
