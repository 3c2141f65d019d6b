"""The Kubernetes API: the few requests that the operator makes.

Apart from all that decides. Objects are drawn as JSON here, and travel as such; what a kubeconfig and a service
account's token mean is known to `epochal.kube.access`.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp

from epochal.kube.access import Access, Choice, open_access
from epochal.resources.cluster.names import MANAGER, Object
from epochal_operator.api_throttle import Trouble

logger = logging.getLogger("epochal.operator")

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_PAGE = 500
"""Objects in one answer to a list."""


class Kind(NamedTuple):
    """Where objects of a kind are."""

    kind: str
    path: str
    plural: str

    @property
    def api_version(self) -> str:
        """As objects have it: `v1`, `policy/v1`."""
        return self.path.removeprefix("/apis/").removeprefix("/api/")


STREAM = Kind("Stream", "/apis/epochal.dev/v1alpha1", "streams")
CHILDREN = (
    Kind("ServiceAccount", "/api/v1", "serviceaccounts"),
    Kind("Service", "/api/v1", "services"),
    Kind("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
    Kind("Pod", "/api/v1", "pods"),
    Kind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
    Kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies"),
)
_OTHERS = (Kind("Event", "/api/v1", "events"), Kind("Lease", "/apis/coordination.k8s.io/v1", "leases"))
KINDS = {kind.kind: kind for kind in (STREAM, *CHILDREN, *_OTHERS)}


class ApiError(Exception):
    """The API server refused, or did not answer: then `status` is 0."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0, missing: str = "") -> None:
        self.status, self.message, self.retry_after, self._missing = status, message, retry_after, missing
        super().__init__(f"the Kubernetes API: {status or 'no answer'}: {message}")

    def is_gone(self, name: str) -> bool:
        """Whether it says that the very object is not there, and not that nothing is known of such objects yet."""
        return self.status == 404 and self._missing == name

    @property
    def passes(self) -> bool:
        """Whether it is about the server's state and not about the request."""
        return self.status in (0, 429) or self.status >= 500


class Api:
    """The API server of `kubeconfig`, else of KUBECONFIG, else of this pod's cluster. All methods raise `ApiError`.

    Entering raises `ConfigError` where there is none, and `ClusterError` where a log-in fails. `may_write` is asked
    before every write; what it raises is raised.
    """

    def __init__(
        self,
        timeout: float = 30.0,
        may_write: Callable[[], None] = lambda: None,
        kubeconfig: Path | str | None = None,
    ) -> None:
        self.may_write = may_write
        self._choice = Choice(kubeconfig=str(kubeconfig) if kubeconfig else None)
        self.trouble = Trouble()
        self.requests: dict[tuple[str, str], int] = {}
        """How many there were, by method and outcome."""
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._access = await open_access(self._choice)
        connector = aiohttp.TCPConnector(ssl=self._access.tls, limit=64)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        assert self._access is not None
        await self._session.close()
        await self._access.close()

    @property
    def access(self) -> Access:
        """Where the API server is, and who we are there."""
        assert self._access is not None, "the API is entered"
        return self._access

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, None when there is none."""
        try:
            found: Object = await self._call("GET", _path(KINDS[kind], namespace, name))
        except ApiError as error:
            if error.is_gone(name):
                return None
            raise
        return found

    async def list(self, kind: Kind, namespace: str = "", selector: str = "") -> tuple[list[Object], str]:
        """All objects of a kind, in a namespace or everywhere, with the version of the list."""
        found: list[Object] = []
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            answer = await self._call("GET", _path(kind, namespace), query=query)
            # They do not say themselves what they are.
            found += ({"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"])
            if not answer["metadata"].get("continue"):
                return found, answer["metadata"]["resourceVersion"]
            query["continue"] = answer["metadata"]["continue"]

    async def create(self, item: Object) -> Object:
        """Make an object; 409 when there is one of its name."""
        path = _path(KINDS[item["kind"]], item["metadata"]["namespace"])
        made: Object = await self._call("POST", path, item, query={"fieldManager": MANAGER})
        return made

    async def apply(self, item: Object, *, uid: str | None = None) -> Object:
        """Server-side apply. `uid`: of the one object that is meant, whose fields are taken over from others."""
        metadata = item["metadata"]
        body = item if uid is None else {**item, "metadata": {**metadata, "uid": uid}}
        query = {"fieldManager": MANAGER, "force": "false" if uid is None else "true"}
        path = _path(KINDS[item["kind"]], metadata["namespace"], metadata["name"])
        applied: Object = await self._call("PATCH", path, body, query=query, kind=_APPLY)
        return applied

    async def merge(self, item: Object, change: Object, *, part: str = "") -> Object:
        """Change some fields of exactly this object in exactly this version; 409 when it has changed since.

        `part`: a sub-resource, such as `/status`.
        """
        metadata = item["metadata"]
        path = _path(KINDS[item["kind"]], metadata["namespace"], metadata["name"]) + part
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {**change, "metadata": {**change.get("metadata", {}), **version}}
        merged: Object = await self._call("PATCH", path, body, query={"fieldManager": MANAGER}, kind=_MERGE)
        return merged

    async def replace(self, item: Object) -> Object:
        """Put this object in the place of its former version; 409 when that has changed since."""
        metadata = item["metadata"]
        path = _path(KINDS[item["kind"]], metadata["namespace"], metadata["name"])
        replaced: Object = await self._call("PUT", path, item)
        return replaced

    async def delete(self, item: Object, preconditions: Mapping[str, str]) -> Object | None:
        """Delete an object if the preconditions hold, 409 else; what is left of it, None when it is gone."""
        metadata = item["metadata"]
        path = _path(KINDS[item["kind"]], metadata["namespace"], metadata["name"])
        try:
            answer = await self._call("DELETE", path, {"preconditions": dict(preconditions)})
        except ApiError as error:
            if error.is_gone(metadata["name"]):
                return None
            raise
        return answer if answer["kind"] != "Status" and "deletionTimestamp" in answer["metadata"] else None

    async def _call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, kind: str = ""
    ) -> Any:
        async with self.trouble.turn():
            if method != "GET":
                self.may_write()
            try:
                answer = await self._send(method, path, body, query or {}, kind or "application/json")
            except ApiError as error:
                self._note(method, str(error.status))
                if error.passes:
                    self.trouble.began(error.retry_after)
                else:
                    self.trouble.over()
                raise
            self._note(method, "ok")
            self.trouble.over()
            return answer

    async def _send(self, method: str, path: str, body: Any, query: Mapping[str, str], kind: str) -> Any:
        assert self._session is not None, "the API is entered"
        access = self.access
        headers = {"Accept": "application/json", "Content-Type": kind, **await access.headers()}
        url = f"{access.server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with self._session.request(
                method, url, json=body, headers=headers, proxy=access.proxy, server_hostname=access.server_name
            ) as response:
                if response.status >= 300:
                    raise _refusal(response, await response.text(errors="replace"))
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ApiError(0, f"{method} {path}: {str(error) or type(error).__name__}") from None
        return answer

    def _note(self, method: str, outcome: str) -> None:
        self.requests[method, outcome] = self.requests.get((method, outcome), 0) + 1


def _path(kind: Kind, namespace: str, name: str = "") -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{kind.path}{within}/{kind.plural}" + (f"/{name}" if name else "")


def _refusal(response: aiohttp.ClientResponse, text: str) -> ApiError:
    try:
        answer = json.loads(text)
    except ValueError:  # what it does not know at all it refuses in a plain line
        answer = {"message": " ".join(text.split())[:200]}
    told: dict[str, Any] = answer if isinstance(answer, dict) else {}
    message, missing = told.get("message", ""), (told.get("details") or {}).get("name", "")
    return ApiError(response.status, message or response.reason or "", retry_after_of(response), missing)


def retry_after_of(response: aiohttp.ClientResponse) -> float:
    """The seconds of rest that an answer asks for."""
    try:
        return float(response.headers.get("Retry-After", "0"))
    except ValueError:  # a date, which Kubernetes does not send
        return 0.0
