"""Checks of `epochal --kube doctor` in the cluster itself, before those of its catalog.

They query Kubernetes, and compare its answers with what our chart installs.
"""

import asyncio
from collections.abc import Coroutine, Sequence

from epochal.cli.doctor.checks import Finding, fail, ok, warn
from epochal.errors import ClusterError, EpochalError
from epochal.kube import Cluster, Right
from epochal.kube.api import KINDS, STREAM, Object, is_ready
from epochal.kube.cluster import USUAL_NAMESPACE, why_not_ready
from epochal.kube.user_api import GROUP, UserApi, find_rights, forward_rights, stream_rights

OURS = "app.kubernetes.io/part-of=epochal"
COMPONENTS = ("operator", "catalog")
SHOWN = 10
"""At most this many objects that are not ready are listed."""
INSTALL = "helm install epochal charts/epochal -n epochal --create-namespace"


async def look_at_cluster(cluster: Cluster, timeout: float) -> list[Finding]:
    """Check the API server, and when it answers all else. Each check ends after `timeout` seconds."""
    access = cluster.access
    where = f"context {access.name} at {access.server}"
    try:
        async with asyncio.timeout(timeout):
            version = await cluster.api.read("/version", Right("get", "version"))
    except TimeoutError:
        return [fail("kubernetes", f"{where} does not answer within {timeout:g} s", "can this machine reach it?")]
    except EpochalError as error:
        return [fail("kubernetes", str(error), "see that `kubectl version` works")]
    findings = [ok("kubernetes", f"{version.get('gitVersion', 'unknown version')}, {where}")]
    namespace = cluster.choice.catalog_namespace
    looks = (_resource(cluster.api), _pods(cluster.api, namespace), _objects(cluster), _rights(cluster))
    for found in await asyncio.gather(*(_bounded(look, timeout) for look in looks)):
        findings.extend(found)
    return findings


async def _bounded(look: Coroutine[None, None, list[Finding]], timeout: float) -> list[Finding]:
    try:
        async with asyncio.timeout(timeout):
            return await look
    except TimeoutError:
        return [fail("kubernetes", f"an answer did not come within {timeout:g} s", "is the API server overloaded?")]
    except EpochalError as error:
        return [fail("kubernetes", str(error), "see that kubectl works as the same user")]


async def _resource(api: UserApi) -> list[Finding]:
    """Whether streams can be applied: read from what every user may read, not from the definition itself."""
    missing = [fail("resource", f"the cluster knows no streams.{GROUP}", f"install the chart: {INSTALL}")]
    try:
        answer = await api.read(STREAM.path, Right("get", "streams", None, GROUP))
    except ClusterError:
        return missing
    names = [one.get("name") for one in answer.get("resources") or ()]
    return [ok("resource", f"streams.{GROUP}/{STREAM.version}")] if "streams" in names else missing


async def _objects(cluster: Cluster) -> list[Finding]:
    """Whether every `Stream` object is ready; no finding if the user may not list them."""
    try:
        found = await cluster.streams.all(None)
    except ClusterError:  # no right, or no such resource: other checks report these
        return []
    waiting = [one for one in found if not is_ready(one)]
    findings = [
        warn("objects", f"{_name(one)}: {_why(one)}", f"kubectl describe stream -n {one['metadata']['namespace']}")
        for one in waiting[:SHOWN]
    ]
    if ready := len(found) - len(waiting):
        findings.append(ok("objects", f"{ready} of {len(found)} Stream objects are ready"))
    return findings


def _name(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _why(item: Object) -> str:
    reported = [one for one in _conditions(item) if one.get("type") == "Ready"]
    if not reported:
        return "the operator has not looked at it: does it run, and is the namespace one of those that it watches?"
    return ": ".join(filter(None, (reported[0].get("reason"), reported[0].get("message")))) or "it is not ready"


def _conditions(item: Object) -> list[Object]:
    return (item.get("status") or {}).get("conditions") or []


async def _pods(api: UserApi, namespace: str | None) -> list[Finding]:
    """The pods of operator and catalog, in all namespaces; without that permission, in the usual one."""
    found: list[Object] = []
    refused: EpochalError | None = None
    for where in (namespace,) if namespace is not None else (None, USUAL_NAMESPACE):
        try:
            found, _ = await api.list(KINDS["Pod"], where or "", OURS)
            refused = None
            break
        except ClusterError as error:
            refused = refused or error
    if refused is not None:
        return [warn("pods", f"cannot be looked at: {refused}", "ask for the right, or pass --kube-namespace")]
    return [judge_pods(component, found) for component in COMPONENTS]


def judge_pods(component: str, pods: Sequence[Object]) -> Finding:
    """Whether a component of the chart has a pod that is ready."""
    ours = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == component]
    names = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": why_not_ready(pod) for pod in ours}
    if not names:
        return fail(component, f"no pod is labelled {OURS},app.kubernetes.io/component={component}", INSTALL)
    ready = [name for name, reason in names.items() if not reason]
    if ready:
        return ok(component, f"pod {', '.join(ready)} is ready")
    reasons = "; ".join(f"pod {name}: {reason}" for name, reason in names.items())
    return fail(component, reasons, "kubectl describe pod, and kubectl logs, show more")


async def _rights(cluster: Cluster) -> list[Finding]:
    """Whether the user may find the catalog, reach pods, and apply and delete streams."""
    own, catalogs = cluster.access.namespace or "default", cluster.choice.catalog_namespace
    needed = [*find_rights(catalogs), *forward_rights(catalogs)]
    wanted = stream_rights(own)
    allowed = dict(zip([*needed, *wanted], await _allowed(cluster.api, [*needed, *wanted]), strict=True))
    findings = []
    if lacking := [right for right in needed if not allowed[right]]:
        seen = f"you may not {', '.join(map(str, lacking))}"
        findings.append(warn("rights", seen, f"to reach catalog and publishers ask for {_roles(lacking)}"))
    if lacking := [right for right in wanted if not allowed[right]]:
        seen = f"you may not {', '.join(map(str, lacking))}"
        findings.append(warn("rights", seen, f"to apply and delete streams there ask for {_roles(lacking)}"))
    return findings or [ok("rights", f"you may reach all pods, and apply streams in namespace {own}")]


async def _allowed(api: UserApi, rights: Sequence[Right]) -> list[bool]:
    async def one(right: Right) -> bool:
        answer = await api.create(right.review())
        return bool((answer.get("status") or {}).get("allowed"))

    return list(await asyncio.gather(*map(one, rights)))


def _roles(rights: Sequence[Right]) -> str:
    """The RBAC rules to ask for: one for each resource, with all its verbs."""
    verbs: dict[tuple[str, str | None, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.resource, right.namespace, right.group), []).append(right.verb)
    return "; ".join(Right(", ".join(some), *resource).role() for resource, some in verbs.items())
