"""What a user must be allowed to do in a cluster, in the words of a Role.

A refused request and `epochal --kube doctor` name the same rights.
"""

from dataclasses import dataclass
from typing import Any

GROUP = "epochal.dev"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource; `namespace` None: in all of them."""

    verb: str
    resource: str
    namespace: str | None = None
    group: str = ""

    @property
    def full_resource(self) -> str:
        """`pods/portforward`, `streams.epochal.dev`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def __str__(self) -> str:
        where = "in all namespaces" if self.namespace is None else f"in namespace {self.namespace}"
        return f"{self.verb} {self.full_resource} {where}"

    def role(self) -> str:
        """The rule that grants it, as in a Role (in a ClusterRole when it is of all namespaces)."""
        kind = "ClusterRole" if self.namespace is None else f"Role in namespace {self.namespace}"
        return f"a {kind} with apiGroups: [{self.group!r}], resources: [{self.resource}], verbs: [{self.verb}]"

    def review(self) -> dict[str, Any]:
        """The SelfSubjectAccessReview for it."""
        resource, _, subresource = self.resource.partition("/")
        attributes = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource}
        if self.namespace is not None:
            attributes["namespace"] = self.namespace
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }


def find_rights(namespace: str | None) -> list[Right]:
    """To find the catalog."""
    return [Right("list", "services", namespace), Right("get", "services", namespace), Right("list", "pods", namespace)]


FORWARD_VERBS = ("get", "create")
"""A port-forward by WebSocket begins with GET, for which clusters from 1.35 on need `create` as well."""


def forward_rights(namespace: str | None) -> list[Right]:
    """To reach pods of a namespace."""
    return [Right(verb, "pods/portforward", namespace) for verb in FORWARD_VERBS]


def stream_rights(namespace: str | None) -> list[Right]:
    """To apply and delete streams in a namespace."""
    return [Right(verb, "streams", namespace, GROUP) for verb in ("get", "list", "create", "patch", "delete")]
