"""The client of the Kubernetes API that all parts use: get, list, create, apply, merge, replace and delete.

Objects are plain JSON here. The connection, its credentials and its requests are those of the `kubernetes` package
(`kubernetes.aio`); its generated classes are not used, because objects are drawn and compared as JSON.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import aiohttp

from epochal.kube.access import Access, Choice, open_access

Object = dict[str, Any]

PAGE = 500
"""Objects in one answer to a list."""
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"


def is_ready(item: Object) -> bool:
    """Whether its condition `Ready` is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


class ResourceKind(NamedTuple):
    """Where objects of a kind are."""

    kind: str
    path: str
    plural: str

    @property
    def api_version(self) -> str:
        """As objects have it: `v1`, `policy/v1`."""
        return self.path.removeprefix("/apis/").removeprefix("/api/")

    @property
    def group(self) -> str:
        """The API group; "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version alone."""
        return self.api_version.rpartition("/")[2]


STREAM = ResourceKind("Stream", "/apis/epochal.dev/v1alpha1", "streams")
RELAY = ResourceKind("Relay", "/apis/epochal.dev/v1alpha1", "relays")
KINDS = {
    kind.kind: kind
    for kind in (
        STREAM,
        RELAY,
        ResourceKind("ServiceAccount", "/api/v1", "serviceaccounts"),
        ResourceKind("Service", "/api/v1", "services"),
        ResourceKind("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
        ResourceKind("Pod", "/api/v1", "pods"),
        ResourceKind("Deployment", "/apis/apps/v1", "deployments"),
        ResourceKind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
        ResourceKind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies"),
        ResourceKind("Event", "/api/v1", "events"),
        ResourceKind("Lease", "/apis/coordination.k8s.io/v1", "leases"),
        ResourceKind("SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    )
}


class ApiError(Exception):
    """The API server refused, or did not answer: then `status` is 0.

    `details`: what its answer says about the object that it refuses or misses. `retry_after`: seconds.
    """

    def __init__(
        self, status: int, message: str, retry_after: float = 0.0, details: Mapping[str, Any] | None = None
    ) -> None:
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.details = details or {}
        super().__init__(f"the Kubernetes API: {status or 'no answer'}: {message}")

    def is_gone(self, name: str) -> bool:
        """Whether the object of this name is missing, and not its whole kind."""
        return self.status == 404 and self.details.get("name") == name

    @property
    def passes(self) -> bool:
        """Whether it is about the server's state and not about the request."""
        return self.status in (0, 429) or self.status >= 500


class Api:
    """The API server of `choice`; enter it to log in. All methods raise `ApiError`.

    Entering raises `ConfigError` where there is no cluster, and `ClusterError` where a log-in fails. `timeout`: seconds
    for one request. `manager`: who has set a field, as Kubernetes keeps account of it. `connections`: how many at once;
    0: any number.
    """

    def __init__(self, choice: Choice, *, timeout: float, manager: str, connections: int = 0) -> None:
        self._choice = choice
        self._timeout = timeout
        self._manager = manager
        self._limit = connections
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None
        self._rest: Any = None

    async def __aenter__(self) -> Self:
        self._access = access = await open_access(self._choice)
        self._session = access.session(self._limit)
        self._rest = access.rest(self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.access.close()

    @property
    def access(self) -> Access:
        """Where the API server is, and who we are there."""
        assert self._access is not None, "the API is entered"
        return self._access

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections."""
        assert self._session is not None, "the API is entered"
        return self._session

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, None when there is none."""
        try:
            found: Object = await self.request("GET", path_of(KINDS[kind], namespace, name))
        except ApiError as error:
            if error.is_gone(name):
                return None
            raise
        return found

    async def list(
        self, kind: ResourceKind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects of a kind, in a namespace or everywhere, page after page; and the version of the list.

        `selector`: by labels; `fields`: by fields, such as `involvedObject.uid=...` of events.
        """
        found: list[Object] = []
        chosen = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(PAGE), **{name: value for name, value in chosen.items() if value}}
        while True:
            answer = await self.request("GET", path_of(kind, namespace), query=query)
            # Items of a list do not carry their kind.
            found += ({"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"])
            if not answer["metadata"].get("continue"):
                return found, answer["metadata"]["resourceVersion"]
            query["continue"] = answer["metadata"]["continue"]

    async def create(self, item: Object) -> Object:
        """Make an object; 409 when there is one of its name."""
        path = path_of(KINDS[item["kind"]], item.get("metadata", {}).get("namespace", ""))
        made: Object = await self.request("POST", path, item, query={"fieldManager": self._manager})
        return made

    async def apply(
        self, item: Object, *, uid: str | None = None, force: bool = False, options: Mapping[str, str] | None = None
    ) -> Object:
        """Server-side apply.

        `uid`: that of the one object that is meant, whose fields are taken over from others; `force` takes them over
        from whatever object there is. `options`: more parameters of the request, such as `dryRun`.
        """
        body = item if uid is None else {**item, "metadata": {**item["metadata"], "uid": uid}}
        force = force or uid is not None
        query = {"fieldManager": self._manager, "force": "true" if force else "false", **(options or {})}
        applied: Object = await self.request("PATCH", path_to(item), body, query=query, content_type=_APPLY)
        return applied

    async def merge(self, item: Object, change: Object, *, part: str = "") -> Object:
        """Change some fields of exactly this object in exactly this version; 409 when it has changed since.

        `part`: a sub-resource, such as `/status`.
        """
        metadata = item["metadata"]
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {**change, "metadata": {**change.get("metadata", {}), **version}}
        query = {"fieldManager": self._manager}
        merged: Object = await self.request("PATCH", path_to(item) + part, body, query=query, content_type=_MERGE)
        return merged

    async def replace(self, item: Object) -> Object:
        """Put this object in the place of its former version; 409 when that has changed since."""
        replaced: Object = await self.request("PUT", path_to(item), item)
        return replaced

    async def delete(self, item: Object, preconditions: Mapping[str, str] | None = None) -> Object | None:
        """Delete an object if the preconditions hold, 409 else; what is left of it, None when it is gone."""
        body = {"preconditions": dict(preconditions)} if preconditions else None
        try:
            answer = await self.request("DELETE", path_to(item), body)
        except ApiError as error:
            if error.is_gone(item["metadata"]["name"]):
                return None
            raise
        return answer if answer["kind"] != "Status" and "deletionTimestamp" in answer["metadata"] else None

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = _JSON,
    ) -> Any:
        """One request; its answer, decoded."""
        assert self._rest is not None, "the API is entered"
        url = f"{self.access.server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with asyncio.timeout(self._timeout):
                headers = {"Accept": _JSON, "Content-Type": content_type, **await self.access.headers()}
                response = await self._rest.request(
                    method, url, headers=headers, body=body, _request_timeout=aiohttp.ClientTimeout(total=None)
                )
                text = (await response.read()).decode("utf-8", "replace")
            if response.status < 300:
                return json.loads(text)
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise ApiError(0, f"{method} {path}: {str(error) or type(error).__name__}") from error
        raise _refusal(response.status, response.reason or "", response.headers, text)


def path_of(kind: ResourceKind, namespace: str, name: str = "") -> str:
    """The path of one object, or of all of a kind; all namespaces where none is given."""
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{kind.path}{within}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")


def path_to(item: Object) -> str:
    """The path of this object."""
    return path_of(KINDS[item["kind"]], item["metadata"]["namespace"], item["metadata"]["name"])


def retry_after_of(headers: Mapping[str, str]) -> float:
    """The seconds of rest that an answer asks for."""
    try:
        return float(headers.get("Retry-After", "0"))
    except ValueError:  # a date, which Kubernetes does not send
        return 0.0


def _refusal(status: int, reason: str, headers: Mapping[str, str], text: str) -> ApiError:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):  # for a path that it does not know it answers one plain line
        answer = {"message": " ".join(text.split())[:200]}
    said: Object = answer if isinstance(answer, dict) else {}
    return ApiError(status, str(said.get("message") or reason), retry_after_of(headers), said.get("details"))
