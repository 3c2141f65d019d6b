"""What the operator may do: with exactly the rights of docs/operator.md it works, in one namespace or everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api.stage import stage
from tests.cluster.harness.apiserver import ApiServer

from epochal.resources.crd import CRD_NAME, crd_text

ALL = ["get", "list", "watch", "create", "patch", "delete"]
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["epochal.dev"], "resources": ["streams"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["epochal.dev"], "resources": ["streams/status"], "verbs": ["patch"]},
    {"apiGroups": ["epochal.dev"], "resources": ["streams/finalizers"], "verbs": ["update"]},
    {
        "apiGroups": [""],
        "resources": ["pods", "services", "persistentvolumeclaims", "serviceaccounts"],
        "verbs": ALL,
    },
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ALL},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ALL},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]
LEASES = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]


def role(kind: str, name: str, namespace: str | None, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A role and its binding to the operator's account."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": "operators"}
    reference = {"apiGroup": group, "kind": kind, "name": name}
    binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": metadata}
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules},
        {**binding, "subjects": [subject], "roleRef": reference},
    ]


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "the whole cluster"])
async def test_with_its_rights_and_no_more_it_works(
    api_servers: Callable[..., ApiServer], tmp_path: Path, everywhere: bool
) -> None:
    server = api_servers()
    server.kubectl("apply", "--server-side", "-f", "-", stdin=crd_text())
    server.wait(f"crd/{CRD_NAME}", "condition=Established")
    for namespace in ("operators", "demo"):
        server.kubectl("create", "namespace", namespace)
    server.kubectl("create", "serviceaccount", "operator", "-n", "operators")
    kind, where = ("ClusterRole", None) if everywhere else ("Role", "demo")
    server.apply(*role(kind, "operator", where, RULES), *role("Role", "leases", "operators", LEASES))
    account = server.run_as_service_account("operators", "operator", tmp_path / "operator-kubeconfig")
    async with stage(server.kubeconfig, "demo", tmp_path) as set_up:
        namespaces = "" if everywhere else "demo"
        operator = set_up.operator_as(account.kubeconfig, namespaces=namespaces, lease_namespace="operators")
        await operator.start()
        await set_up.declare(segments=2, history={"storage": {"size": "1Gi"}})
        await set_up.is_ready()
        await set_up.change(progress={"minWriters": 2})
        await set_up.is_ready()
        await set_up.delete()
        assert "forbidden" not in set_up.logs()
        assert "Serving" in await set_up.events()
