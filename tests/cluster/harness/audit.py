"""The calls that an API server got, and from whom: its audit log, read back as values.

It is for tests that compare the rights of a program with the calls that it makes, or that count these calls.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OWN = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:kube-proxy",
    "controllers",
]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "users": _OWN},
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "Metadata"},
    ],
}
"""Everything but the calls of Kubernetes' own components. A watch is logged when it ends."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    user: str
    agent: str
    """What the client calls itself."""
    verb: str
    """As in roles: get, list, watch, create, update, patch, delete, deletecollection."""
    group: str
    """Empty for the core API."""
    resource: str
    """With its sub-resource, like streams/status."""
    namespace: str
    name: str
    code: int
    """The HTTP status of the answer."""


def calls(log: Path) -> Iterator[Call]:
    """The calls in an audit log, in the order of their ends."""
    for line in log.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        thing = event.get("objectRef", {})
        kind = "/".join(filter(None, (thing.get("resource", ""), thing.get("subresource", ""))))
        yield Call(
            event["user"]["username"],
            event.get("userAgent", ""),
            event["verb"],
            thing.get("apiGroup", ""),
            kind,
            thing.get("namespace", ""),
            thing.get("name", ""),
            event.get("responseStatus", {}).get("code", 0),
        )
