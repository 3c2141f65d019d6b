"""The client of the Kubernetes API for people: what it refuses is explained, with the right that is missing.

Separate from `api` because services decide by an answer's status, and a person needs to know what to do. A refused
request and `epochal --kube doctor` name the same rights, in the words of a Role.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from epochal.errors import ClusterError, ClusterUnavailable, ManifestError, Problem, StreamNotFound
from epochal.kube.access import Choice
from epochal.kube.api import KINDS, RELAY, STREAM, Api, ApiError, Object, ResourceKind

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


TIMEOUT = 15.0
"""Seconds for one answer."""
MANAGER = "epochal"
"""The name under which Kubernetes records the fields that we set."""
FORWARD_PROTOCOL = "v4.channel.k8s.io"
"""Channels in binary frames: every version of Kubernetes speaks this to WebSocket clients of pods' ports."""
HEARTBEAT = 30.0
"""Seconds between signs of life on a forwarded connection, so that no proxy on the way takes it for dead."""


class NotThere(ClusterError):
    """The object, or the resource itself, is not in the cluster; `kind` is what is missing (plural), "" if unknown."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class Conflict(ClusterError):
    """Another manager owns what was to be changed."""


class Forbidden(ClusterError):
    """The user has not the right."""


class UserApi(Api):
    """The API server of `choice`, with the user's credentials.

    The methods below raise `ClusterUnavailable`, `ClusterError` (`NotThere`, `Conflict`, `Forbidden`) or, for a stream
    that is not valid, `ManifestError`. `merge` and `replace`, which only services use, are those of `Api`.
    """

    def __init__(self, choice: Choice, timeout: float = TIMEOUT) -> None:
        super().__init__(choice, timeout=timeout, manager=MANAGER)

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, None when there is none."""
        with self._explaining(right_to("get", KINDS[kind], namespace)):
            return await super().get(kind, namespace, name)

    async def list(
        self, kind: ResourceKind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects of a kind, in a namespace or everywhere; and the version of the list."""
        with self._explaining(right_to("list", kind, namespace)):
            return await super().list(kind, namespace, selector, fields)

    async def create(self, item: Object) -> Object:
        """Make an object."""
        with self._explaining(right_to("create", KINDS[item["kind"]], item.get("metadata", {}).get("namespace", ""))):
            return await super().create(item)

    async def apply(
        self, item: Object, *, uid: str | None = None, force: bool = False, options: Mapping[str, str] | None = None
    ) -> Object:
        """Server-side apply."""
        with self._explaining(right_to("patch", KINDS[item["kind"]], item["metadata"]["namespace"])):
            return await super().apply(item, uid=uid, force=force, options=options)

    async def delete(self, item: Object, preconditions: Mapping[str, str] | None = None) -> Object | None:
        """Delete an object; what is left of it, None when it is gone."""
        with self._explaining(right_to("delete", KINDS[item["kind"]], item["metadata"]["namespace"])):
            return await super().delete(item, preconditions)

    async def read(self, path: str, right: Right) -> Object:
        """The answer at `path`, which is not an object of a kind. `right`: the needed permission, for the error."""
        with self._explaining(right):
            found: Object = await self.request("GET", path)
        return found

    async def forward(self, namespace: str, pod: str, port: int) -> aiohttp.ClientWebSocketResponse:
        """A new connection to a port of a pod, in channels (0: data, 1: what went wrong)."""
        access = self.access
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
        with self._explaining(Right(", ".join(FORWARD_VERBS), "pods/portforward", namespace)):
            try:
                async with asyncio.timeout(self._timeout):
                    return await self.session.ws_connect(
                        f"{access.server}{path}?ports={port}",
                        protocols=(FORWARD_PROTOCOL,),
                        headers=await access.headers(),
                        server_hostname=access.server_name,
                        heartbeat=HEARTBEAT,
                        max_msg_size=0,  # the API server, which we trust, cuts what a pod sends into frames
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise ApiError(error.status, "") from None
            except (aiohttp.ClientError, OSError) as error:
                raise ApiError(0, str(error)) from error

    @contextmanager
    def _explaining(self, right: Right) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            raise self._explained(error, right) from None

    def _explained(self, error: ApiError, right: Right) -> Exception:
        status = error.status
        message = (error.message or f"status {status}")[:2000]
        name = self.access.name
        match status:
            case 0:
                return self._unreachable(error.__cause__)
            case 401:
                return ClusterError(
                    f"Kubernetes does not take the credentials of context {name} (401): they may have expired; "
                    "log in again as for kubectl, and see that `kubectl get pods` works"
                )
            case 403:
                return Forbidden(f"you may not {right} (context {name}); what grants it is {right.role()}")
            case 404:
                return NotThere(message, str(error.details.get("kind") or ""))
            case 409:
                return Conflict(message)
            case 400 | 422 if right.resource in (STREAM.plural, RELAY.plural):
                causes = [Problem(str(one.get("field", "")), str(one.get("message", ""))) for one in _causes(error)]
                return ManifestError(message if not causes else "the cluster refuses the manifest", causes)
            case 429 | 500 | 502 | 503 | 504:
                return ClusterUnavailable(f"the API server of context {name} answers {status}: {message}")
            case _:
                return ClusterError(f"Kubernetes refuses to {right}: {message} ({status}, context {name})")

    def _unreachable(self, error: BaseException | None) -> ClusterUnavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return ClusterUnavailable(
            f"the API server of context {self.access.name} cannot be reached at {self.access.server} ({reason}); "
            "does kubectl reach it?"
        )


def right_to(verb: str, kind: ResourceKind, namespace: str) -> Right:
    """The right to do this with objects of a kind; in all namespaces where none is given."""
    return Right(verb, kind.plural, namespace or None, kind.group)


def _causes(error: ApiError) -> list[Object]:
    return [cause for cause in error.details.get("causes") or () if isinstance(cause, dict)]


class DeclaredObjects:
    """The `Stream` or the `Relay` objects of the cluster of `api`: applied, read and deleted as kubectl does it.

    Streams there are not the catalog's streams, which the operator declares for them: a change that is made only at the
    catalog would be undone, or have no publishers.
    """

    def __init__(self, api: UserApi, kind: ResourceKind) -> None:
        self._api = api
        self._kind = kind

    async def all(self, namespace: str | None = None) -> list[Object]:
        """All objects, or those of a namespace."""
        try:
            return (await self._api.list(self._kind, namespace or ""))[0]
        except NotThere:
            raise self._no_resource() from None

    async def find(self, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        try:
            return await self._api.get(self._kind.kind, namespace, name)
        except NotThere:
            raise self._no_resource() from None

    async def apply(
        self,
        manifest: Mapping[str, Any],
        namespace: str,
        name: str,
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> Object:
        """Server-side apply of exactly the fields that are given; returns the object as it is then.

        Raises `ManifestError` for what the cluster finds wrong, `ClusterError` for fields that another manager has set
        unless `force` takes them over, and for a namespace that is not there.
        """
        options = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        item = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace, "name": name}}
        try:
            return await self._api.apply(item, force=force, options=options)
        except Conflict as error:
            raise ClusterError(
                f"{self._kind.kind.lower()} {namespace}/{name} has fields that something else has set: {error}; "
                "apply with what set them, or take them over with --force-conflicts"
            ) from None
        except NotThere as error:
            if error.kind == "namespaces":
                raise ClusterError(
                    f"there is no namespace {namespace}; create it with: kubectl create namespace {namespace}"
                ) from None
            raise self._no_resource() from None

    async def delete(self, namespace: str, name: str) -> Object:
        """Delete the object; a stream's is gone once the operator has ended the publishers.

        Raises `StreamNotFound`, or `NotThere` for a relay.
        """
        found = await self.find(namespace, name)
        if found is None:
            missing = f"there is no {self._kind.kind} object {namespace}/{name} in the cluster"
            raise StreamNotFound(missing) if self._kind is STREAM else NotThere(missing, self._kind.plural)
        with suppress(NotThere):  # someone else did
            await self._api.delete({**found, "kind": self._kind.kind})
        return found

    def _no_resource(self) -> ClusterError:
        return ClusterError(
            f"the cluster of context {self._api.access.name} knows no {self._kind.plural}.{GROUP}: is Epochal installed"
            " there? helm install epochal charts/epochal -n epochal --create-namespace"
        )
