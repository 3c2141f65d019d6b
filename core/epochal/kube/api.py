"""Calls to the API server of Kubernetes: JSON in and out, and what it refuses told with the right that is missing.

Apart from what is called for: here is the one place that knows how Kubernetes says no. It is spoken to with aiohttp, as
the catalog is; of the `kubernetes` library only credentials are used, whose models take long to load and to build.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp

from epochal.errors import ClusterError, ClusterUnavailable, ManifestError, Problem
from epochal.kube.access import Access
from epochal.kube.rights import FORWARD_VERBS, Right

TIMEOUT = 15.0
"""Seconds for one answer."""
FORWARD_PROTOCOL = "v4.channel.k8s.io"
"""Channels in binary frames: what every version of Kubernetes speaks to WebSocket clients about pods' ports."""
HEARTBEAT = 30.0
"""Seconds between signs of life on a forwarded connection, so that nobody in between takes it for dead."""

Object = dict[str, Any]


class NotThere(ClusterError):
    """The object, or the resource itself, is not in the cluster; `kind` is what is missing (plural), "" if unknown."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class Conflict(ClusterError):
    """Somebody else manages what was to be changed."""


class Forbidden(ClusterError):
    """The user has not the right."""


class Api:
    """The API server of `access`; `close` or `async with` ends the connections."""

    def __init__(self, access: Access, timeout: float = TIMEOUT) -> None:
        self.access, self._timeout = access, timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, right: Right, **params: str) -> Object:
        """The object or list at `path`."""
        return await self.call("GET", path, right, params=params)

    async def items(self, path: str, right: Right, **params: str) -> list[Object]:
        """All objects of a list, page after page."""
        found: list[Object] = []
        more: dict[str, str] = {"limit": "500"}
        while True:
            answer = await self.get(path, right, **params, **more)
            found.extend(answer.get("items") or ())
            following = (answer.get("metadata") or {}).get("continue")
            if not following:
                return found
            more["continue"] = following

    async def call(
        self,
        method: str,
        path: str,
        right: Right,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call. `right`: what it needs, for the error.

        Raises `ClusterUnavailable`, `ClusterError` (`NotThere`, `Conflict`, `Forbidden`) or, when the object is not
        valid, `ManifestError`.
        """
        access = self.access
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._opened().request(
                    method,
                    access.server + path,
                    params=params,
                    data=None if body is None else json.dumps(body),
                    headers={"Content-Type": content_type, "Accept": "application/json", **await access.headers()},
                    proxy=access.proxy,
                    server_hostname=access.server_name,
                    allow_redirects=False,
                ) as response,
            ):
                text, status = await response.text(), response.status
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from None
        answer = _decode(text)
        if 200 <= status < 300:
            return answer
        raise self.refused(status, answer, right)

    async def forward(self, namespace: str, pod: str, port: int) -> aiohttp.ClientWebSocketResponse:
        """A new connection to a port of a pod, in channels (0: data, 1: what went wrong); raises as `call` does."""
        access = self.access
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
        try:
            async with asyncio.timeout(self._timeout):
                return await self._opened().ws_connect(
                    f"{access.server}{path}?ports={port}",
                    protocols=(FORWARD_PROTOCOL,),
                    headers=await access.headers(),
                    proxy=access.proxy,
                    server_hostname=access.server_name,
                    heartbeat=HEARTBEAT,
                    max_msg_size=0,  # what a pod sends is cut into frames by the API server, whom we trust
                )
        except aiohttp.WSServerHandshakeError as error:
            raise self.refused(error.status, {}, _forwarding(namespace)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from None

    def refused(self, status: int, answer: Object, right: Right) -> Exception:
        """The error of an answer that says no."""
        message = str(answer.get("message") or f"status {status}")[:2000]
        details = answer.get("details") or {}
        name = self.access.name
        match status:
            case 401:
                return ClusterError(
                    f"Kubernetes does not take the credentials of context {name} (401): they may have expired; "
                    "log in again as for kubectl, and see that `kubectl get pods` works"
                )
            case 403:
                return Forbidden(f"you may not {right} (context {name}); what grants it is {right.role()}")
            case 404:
                return NotThere(message, str(details.get("kind") or ""))
            case 409:
                return Conflict(message)
            case 400 | 422 if right.resource == "streams":
                causes = [Problem(str(one.get("field", "")), str(one.get("message", ""))) for one in _causes(details)]
                return ManifestError(message if not causes else "the cluster refuses the manifest", causes)
            case 429 | 500 | 502 | 503 | 504:
                return ClusterUnavailable(f"the API server of context {name} answers {status}: {message}")
            case _:
                return ClusterError(f"Kubernetes refuses to {right}: {message} ({status}, context {name})")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self.access.tls, limit=0),  # each forwarded connection has its own
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _unreachable(self, error: BaseException) -> ClusterUnavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return ClusterUnavailable(
            f"the API server of context {self.access.name} cannot be reached at {self.access.server} ({reason}); "
            "does kubectl reach it?"
        )


def _forwarding(namespace: str) -> Right:
    return Right(", ".join(FORWARD_VERBS), "pods/portforward", namespace)


def _decode(text: str) -> Object:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {"message": text.strip()[:200]} if text.strip() else {}
    return answer if isinstance(answer, dict) else {}


def _causes(details: Object) -> list[Object]:
    causes = details.get("causes") or []
    return [cause for cause in causes if isinstance(cause, dict)]
