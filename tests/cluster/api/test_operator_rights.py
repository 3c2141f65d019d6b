"""What the chart lets the operator do: with its roles, as helm draws them, it works, and uses all that they grant."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import Object, find, render
from tests.cluster.api.sandbox import Sandbox, eventually, open_sandbox
from tests.cluster.harness import building
from tests.cluster.harness.apiserver import ApiServer
from tests.cluster.harness.audit import Call

from epochal.resources.cluster.stream import INDEX_LABEL
from epochal.resources.definitions import all_crds

Right = tuple[str, str, str]
"""API group, resource and verb."""
HOME, NAMESPACE = "operators", "demo"
RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")
CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "fast"},
    "provisioner": "example.org/none",
    "allowVolumeExpansion": True,
}
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi", "storageClassName": "fast"}}}
LARGER: dict[str, Any] = {"history": {"storage": {"size": "2Gi", "storageClassName": "fast"}}}
NOT_SEEN: set[Right] = {
    # Checked when a child is made, where only who has it may block an owner's deletion.
    ("epochal.dev", "streams/finalizers", "update"),
    ("epochal.dev", "relays/finalizers", "update"),
    # Checked of an apply that makes what is not there, and written down as patch.
    ("epochal.dev", "relays", "create"),
    ("apps", "deployments", "create"),
    ("", "services", "create"),
    ("", "serviceaccounts", "create"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("policy", "poddisruptionbudgets", "create"),
}
"""What is needed, and never asked for by itself."""


def chart(everywhere: bool) -> list[Object]:
    """The objects of a release that looks after the whole cluster, or one namespace."""
    building.helm()
    watched = [] if everywhere else [NAMESPACE]
    return render({"watchNamespaces": watched, "rbac": {"aggregate": False}}, namespace=HOME)


def rights_of(objects: list[Object], component: str) -> list[Object]:
    """The roles, bindings and account of a component."""
    name = "app.kubernetes.io/component"
    return [each for each in objects if each["kind"] in RIGHTS and each["metadata"]["labels"][name] == component]


def granted(objects: list[Object]) -> set[Right]:
    """All that roles grant."""

    def each() -> Iterator[Right]:
        for rule in (rule for item in objects for rule in item.get("rules", ())):
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for group in rule["apiGroups"] for verb in rule["verbs"])

    return set(each())


@pytest.fixture
def server(api_servers: Callable[..., ApiServer]) -> ApiServer:
    """Without controllers: nobody else removes a child, so that all that the operator removes is seen."""
    server = api_servers()
    server.define(all_crds())
    server.apply(CLASS)
    for namespace in (HOME, NAMESPACE):
        server.kubectl("create", "namespace", namespace)
    return server


def account_of(server: ApiServer, objects: list[Object], directory: Path) -> tuple[str, Path]:
    """Give an account these rights; what the audit log calls it, and a kubeconfig of its own."""
    server.apply(*objects)
    [name] = (each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount")
    seen = server.run_as_service_account(HOME, name, directory / f"kubeconfig-{name}")
    return f"system:serviceaccount:{HOME}:{name}", seen.kubeconfig


def used(server: ApiServer, user: str) -> set[Right]:
    """What a user asked for, none of which was forbidden."""
    calls: list[Call] = [call for call in server.calls() if call.user == user]
    assert [call for call in calls if call.code in (401, 403)] == []
    return {(call.group, call.resource, call.verb) for call in calls}


async def play(server: ApiServer, sandbox: Sandbox) -> None:
    """All that happens to streams: made, changed, damaged, deleted, and made anew beside what is left."""
    await sandbox.declare(segments=2, **STORED)
    await sandbox.is_ready()
    await sandbox.change(progress={"minWriters": 2})
    await sandbox.is_ready()
    await damage(server, sandbox)
    await grow(server, sandbox)
    await sandbox.delete()
    await eventually(lambda: gone(sandbox))
    await sandbox.declare(segments=2, **STORED)
    await let_go_of_claims(server, sandbox)
    await sandbox.is_ready()
    await meet_names_that_are_taken(server, sandbox)
    await relay(server, sandbox)


async def relay(server: ApiServer, sandbox: Sandbox) -> None:
    """A stream's own relay comes and goes, and one that was made by hand loses its stream."""
    await sandbox.declare("passed", segments=1, relays=1)
    await eventually(lambda: sandbox.api.get("Deployment", NAMESPACE, "passed-relay"))
    await sandbox.change("passed", relays=0)

    async def gone() -> bool:
        return await sandbox.api.get("Relay", NAMESPACE, "passed") is None

    await eventually(gone)
    by_hand = {"apiVersion": "epochal.dev/v1alpha1", "kind": "Relay", "metadata": {"name": "near"}}
    server.apply({**by_hand, "spec": {"stream": "passed"}}, namespace=NAMESPACE)
    await eventually(lambda: sandbox.api.get("Deployment", NAMESPACE, "near-relay"))
    await sandbox.delete("passed")

    async def ended() -> bool:
        return await sandbox.api.get("Deployment", NAMESPACE, "near-relay") is None

    await eventually(ended)


async def damage(server: ApiServer, sandbox: Sandbox) -> None:
    """What is deleted comes back, and so does a label that is taken off."""
    before = await sandbox.children()
    server.kubectl("label", "pod", "flights-0", "-n", NAMESPACE, f"{INDEX_LABEL}-")
    kept = ("Pod", "PersistentVolumeClaim")
    for kind, name in (place for place in before if place[0] not in kept):
        server.kubectl("delete", kind, name, "-n", NAMESPACE)

    async def repaired() -> bool:
        after = await sandbox.children()
        same = {place for place in before.keys() & after.keys() if uid(before[place]) == uid(after[place])}
        labelled = INDEX_LABEL in after["Pod", "flights-0"]["metadata"]["labels"]
        return labelled and after.keys() == before.keys() and {kind for kind, _ in same} == set(kept)

    await eventually(repaired)


async def grow(server: ApiServer, sandbox: Sandbox) -> None:
    """A claim that is bound can be made larger."""
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    for claim in ("flights-0", "flights-1"):
        server.kubectl(
            "patch", "pvc", claim, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(bound)
        )
    await sandbox.change(**LARGER)

    async def grown() -> bool:
        found = await sandbox.children()
        claims = [item for (kind, _), item in found.items() if kind == "PersistentVolumeClaim"]
        return {item["spec"]["resources"]["requests"]["storage"] for item in claims} == {"2Gi"}

    await eventually(grown)


def uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


async def gone(sandbox: Sandbox) -> bool:
    return await sandbox.stream() is None


async def let_go_of_claims(server: ApiServer, sandbox: Sandbox) -> None:
    """As a controller would: claims that are deleted wait for somebody to say that no pod has them."""

    async def ending() -> list[str]:
        found = await sandbox.children()
        return [name for (kind, name), item in found.items() if kind == "PersistentVolumeClaim" and is_ending(item)]

    for _ in range(2):
        name, *_ = await eventually(ending)
        server.kubectl("patch", "pvc", name, "-n", NAMESPACE, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def is_ending(item: Object) -> bool:
    return "deletionTimestamp" in item["metadata"]


async def meet_names_that_are_taken(server: ApiServer, sandbox: Sandbox) -> None:
    """What others have made without the operator's labels it finds out when it is refused."""
    pod = {"containers": [{"name": "main", "image": "theirs"}], "automountServiceAccountToken": False}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for kind, name, spec in (("Pod", "engaged-0", pod), ("PersistentVolumeClaim", "taken-0", claim)):
        server.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
    await sandbox.declare("engaged", segments=1)
    await sandbox.declare("taken", segments=1, **STORED)
    for name in ("engaged", "taken"):
        await sandbox.is_told("Ready", "NameConflict", name)


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "the whole cluster"])
async def test_the_operator_works_with_the_rights_of_the_chart_and_uses_them_all(
    server: ApiServer, tmp_path: Path, everywhere: bool
) -> None:
    objects = chart(everywhere)
    roles = rights_of(objects, "operator")
    user, kubeconfig = account_of(server, roles, tmp_path)
    lease = find(objects, "Lease", "-operator")["metadata"]["name"]
    async with open_sandbox(server.kubeconfig, NAMESPACE, tmp_path) as set_up:
        operator = set_up.operator_as(
            kubeconfig, namespaces="" if everywhere else NAMESPACE, lease_namespace=HOME, lease_name=lease
        )
        await operator.start()
        await play(server, set_up)
        assert "Serving" in await set_up.events()
        await operator.stop()  # watches are written down when they end
        assert "forbidden" not in set_up.logs()
    assert used(server, user) == granted(roles) - NOT_SEEN


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "the whole cluster"])
async def test_what_takes_finalizers_off_after_an_uninstall_uses_all_of_its_rights(
    server: ApiServer, tmp_path: Path, everywhere: bool
) -> None:
    roles = rights_of(chart(everywhere), "release")
    user, kubeconfig = account_of(server, roles, tmp_path)
    async with open_sandbox(server.kubeconfig, NAMESPACE, tmp_path) as set_up:
        await set_up.api.create(with_finalizer(set_up.document()))
        where = () if everywhere else ("--namespaces", NAMESPACE)
        said = await set_up.program("epochal_operator", "release", "--settle", "0", *where, kubeconfig=kubeconfig)
        assert said.endswith("released 1 streams of the operator default/epochal-operator\n")
        stream = await set_up.stream()
        assert stream is not None
        assert "finalizers" not in stream["metadata"]
    assert used(server, user) == granted(roles)


def with_finalizer(document: Object) -> Object:
    return {**document, "metadata": {**document["metadata"], "finalizers": ["epochal.dev/finalizer"]}}
