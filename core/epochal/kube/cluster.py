"""A cluster, opened: where its catalog is, and how its publishers are reached from here.

Names that only the cluster's own DNS knows become pods here; any other address is used as it is, so that a publisher
with an external one (`spec.publishers.advertise`) is reached directly. `access` logs in, `port_forward` carries the
bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from epochal.errors import ClusterError, ClusterUnavailable, EpochalError
from epochal.kube.access import Access, Choice
from epochal.kube.api import KINDS, RELAY, STREAM, Object, is_ready
from epochal.kube.port_forward import Forwarder
from epochal.kube.user_api import DeclaredObjects, Forbidden, NotThere, UserApi

_ENDS = (["svc"], ["svc", "cluster", "local"])
"""We never write more than the first ourselves, and people copy the usual full form."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """A port of one pod."""

    namespace: str
    pod: str
    port: int

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod} port {self.port}"


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service: that of any of its pods that is ready."""

    namespace: str
    service: str
    port: int

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.service} port {self.port}"


Target = PodPort | ServicePort


def in_cluster(address: str) -> Target | None:
    """What `SCHEME://HOST:PORT` stands for in a cluster; None when its host is no name of the cluster's own.

    >>> in_cluster("tcp://flights-0.flights.demo.svc:8701")
    PodPort(namespace='demo', pod='flights-0', port=8701)
    >>> in_cluster("http://epochal-catalog.epochal.svc.cluster.local:8700")
    ServicePort(namespace='epochal', service='epochal-catalog', port=8700)
    >>> in_cluster("tcp://flights-0.example.com:8701") is None
    True
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return None
    labels = host.removesuffix(".").split(".")
    end = next((end for end in _ENDS if labels[-len(end) :] == end), None)
    if not port or end is None or not all(labels):
        return None
    match labels[: -len(end)]:
        case [pod, _, namespace]:
            return PodPort(namespace, pod, port)
        case [service, namespace]:
            return ServicePort(namespace, service, port)
        case _:
            return None


def local_form(address: str, port: int) -> str:
    """The same scheme and path at a port of this machine.

    >>> local_form("tcp://flights-0.flights.demo.svc:8701", 40001)
    'tcp://127.0.0.1:40001'
    """
    parts = urlsplit(address)
    return parts._replace(netloc=f"127.0.0.1:{port}").geturl()


CATALOG_LABELS = "app.kubernetes.io/part-of=epochal,app.kubernetes.io/component=catalog"
USUAL_NAMESPACE = "epochal"
"""Where the chart is installed by default."""


class Cluster:
    """A cluster by its kubeconfig; use with `async with`.

        async with Cluster(Choice(context="prod")) as cluster:
            async with epochal.connect(await cluster.catalog(), reach=cluster.reach) as client:
                ...

    `tell` is called when a connection to a pod failed, once for each reason. In a pod without kubeconfig nothing is
    forwarded.
    """

    def __init__(self, choice: Choice, tell: Callable[[str], None] = lambda _: None) -> None:
        self.choice = choice
        self._notify = tell
        self._api: UserApi | None = None
        self._forwarder: Forwarder[Target] = Forwarder(self._connect, self._failed)
        self._catalog: ServicePort | None = None

    async def __aenter__(self) -> Self:
        """Log in; raises `ConfigError` without a usable kubeconfig, `ClusterError` when logging in fails."""
        self._api = await UserApi(self.choice).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was forwarded."""
        try:
            await self._forwarder.close()
        finally:
            await self.api.__aexit__(kind, error, trace)

    @property
    def api(self) -> UserApi:
        """Its API server."""
        if self._api is None:
            raise ClusterError("the cluster is not open: use `async with Cluster(...)`")
        return self._api

    @property
    def access(self) -> Access:
        """The address of the API server, and the credentials for it."""
        return self.api.access

    @property
    def streams(self) -> DeclaredObjects:
        """Its `Stream` objects."""
        return DeclaredObjects(self.api, STREAM)

    @property
    def relays(self) -> DeclaredObjects:
        """Its `Relay` objects."""
        return DeclaredObjects(self.api, RELAY)

    async def catalog(self) -> str:
        """The catalog's URL, as it is reached from here.

        Raises `ClusterError` when none, or more than one, is found, or the user may not look.
        """
        if self._catalog is None:
            self._catalog = await self._find_catalog()
            await self._pod_of(self._catalog)  # so that a catalog that is not up is an error at once, with its reason
        found = self._catalog
        return await self.reach(f"http://{found.service}.{found.namespace}.svc:{found.port}")

    @property
    def catalog_name(self) -> str:
        """The catalog's Service, once `catalog` has found it."""
        return "" if self._catalog is None else f"{self._catalog.namespace}/{self._catalog.service}"

    async def reach(self, address: str) -> str:
        """The address that leads from here to `SCHEME://HOST:PORT`: itself, unless HOST is a name of the cluster's."""
        target = None if self.access.inside else in_cluster(address)
        return address if target is None else local_form(address, await self._forwarder.port(target))

    # ---- the catalog ----

    async def _find_catalog(self) -> ServicePort:
        namespace = self.choice.catalog_namespace
        found = await (self._services(namespace) if namespace is not None else self._services_somewhere())
        where = "in any namespace that you may look into" if namespace is None else f"in namespace {namespace}"
        if not found:
            raise ClusterError(
                f"no catalog {where} of context {self.access.name}: no Service is labelled {CATALOG_LABELS}; "
                "is Epochal installed there? name its namespace with --kube-namespace"
            )
        if len(found) > 1:
            names = ", ".join(f"{one.namespace}/{one.service}" for one in found)
            raise ClusterError(
                f"there are {len(found)} catalogs {where}: {names}; choose by --kube-namespace NS, "
                f"or by --catalog http://{found[0].service}.{found[0].namespace}.svc:{found[0].port}"
            )
        return found[0]

    async def _services(self, namespace: str | None) -> list[ServicePort]:
        items, _ = await self.api.list(KINDS["Service"], namespace or "", CATALOG_LABELS)
        return [
            ServicePort(one["metadata"]["namespace"], one["metadata"]["name"], one["spec"]["ports"][0]["port"])
            for one in items
        ]

    async def _services_somewhere(self) -> list[ServicePort]:
        """Search all namespaces; without that permission, only the likely ones."""
        try:
            return await self._services(None)
        except Forbidden as error:
            refused = error
        for namespace in dict.fromkeys((USUAL_NAMESPACE, self.access.namespace or "default")):
            try:
                found = await self._services(namespace)
            except Forbidden:
                continue
            if found:
                return found
        raise ClusterError(f"{refused}; or, if you may look into the catalog's namespace, name it by --kube-namespace")

    # ---- connections ----

    def _failed(self, target: Target, reason: str) -> None:
        self._notify(f"{target}: {reason}")

    async def _connect(self, target: Target) -> aiohttp.ClientWebSocketResponse:
        pod = target if isinstance(target, PodPort) else await self._pod_of(target)
        try:
            return await self.api.forward(pod.namespace, pod.pod, pod.port)
        except NotThere:
            raise ClusterUnavailable("it is not there") from None
        except Forbidden:
            raise
        except EpochalError as error:
            if why := await self._why_not(pod):
                raise ClusterUnavailable(why) from None
            raise error from None

    async def _why_not(self, pod: PodPort) -> str:
        """What the pod's state says; "" when it is ready, or not known."""
        try:
            found = await self.api.get("Pod", pod.namespace, pod.pod)
        except EpochalError:
            return ""
        return "" if found is None else why_not_ready(found)

    async def _pod_of(self, service: ServicePort) -> PodPort:
        """A pod of the Service that is ready, or only runs where the Service lists such too.

        Raises `ClusterUnavailable` with the reason when there is none.
        """
        namespace = service.namespace
        found = await self.api.get("Service", namespace, service.service)
        if found is None:
            raise ClusterError(f"there is no Service {namespace}/{service.service}")
        selector = ",".join(f"{key}={value}" for key, value in (found["spec"].get("selector") or {}).items())
        pods, _ = await self.api.list(KINDS["Pod"], namespace, selector)
        usable = [pod for pod in pods if not why_not_ready(pod)]
        if found["spec"].get("publishNotReadyAddresses"):  # it may still answer what it can, as it does in the cluster
            usable += [pod for pod in pods if _runs(pod)]
        if selector and usable:
            return PodPort(namespace, usable[0]["metadata"]["name"], _port(found, usable[0], service.port))
        states = "; ".join(f"{pod['metadata']['name']}: {why_not_ready(pod)}" for pod in pods) or "there is none"
        raise ClusterUnavailable(f"no pod of Service {namespace}/{service.service} is ready ({states})")


def why_not_ready(pod: Object) -> str:
    """Why a pod serves no one now; "" when it is ready."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        for state in ("waiting", "terminated"):
            seen = (one.get("state") or {}).get(state)
            if seen:
                reason = " ".join(filter(None, (seen.get("reason"), seen.get("message"))))
                return f"container {one.get('name')} is {state}: {reason}"
    if is_ready(pod):
        return ""
    reasons = [one.get("message") for one in status.get("conditions") or () if one.get("status") == "False"]
    return "; ".join([f"it is {str(status.get('phase', 'unknown')).lower()} and not ready", *filter(None, reasons)][:2])


def _runs(pod: Object) -> bool:
    """Whether a process of it may listen."""
    status = pod.get("status") or {}
    return (
        status.get("phase") == "Running"
        and not pod["metadata"].get("deletionTimestamp")
        and any("running" in (one.get("state") or {}) for one in status.get("containerStatuses") or ())
    )


def _port(service: Object, pod: Object, port: int) -> int:
    """The pod's port that the Service's leads to: a number, or one of the names of the containers' ports."""
    wanted = next((one.get("targetPort", port) for one in service["spec"]["ports"] if one["port"] == port), port)
    if isinstance(wanted, int):
        return wanted
    for container in pod["spec"]["containers"]:
        for one in container.get("ports") or ():
            if one.get("name") == wanted:
                return int(one["containerPort"])
    raise ClusterError(f"pod {pod['metadata']['name']} has no port named {wanted}")
