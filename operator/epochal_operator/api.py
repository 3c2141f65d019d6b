"""The operator's requests to the Kubernetes API: counted, refused without the lease, and slowed while it is in trouble.

An API server that answers 429 or 5xx, or nothing, gets at most one request a second, by one request at a time, and not
before the `Retry-After` that it sent; the first good answer ends that.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from epochal.kube.access import Choice
from epochal.kube.api import KINDS, Api, ApiError
from epochal.resources.cluster.stream import MANAGER

CHILDREN = tuple(
    KINDS[kind]
    for kind in (
        "ServiceAccount",
        "Service",
        "PersistentVolumeClaim",
        "Pod",
        "Deployment",
        "PodDisruptionBudget",
        "NetworkPolicy",
    )
)
"""The kinds of objects that streams and relays have."""
FIRST, LAST = 1.0, 20.0
"""Seconds between requests, from the first failure on."""
_CONNECTIONS = 64


class Throttle:
    """Whether the API server is in trouble, and whose turn it is meanwhile."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._not_before = 0.0
        self._one = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        """Whether the last answer was a failure of the API server."""
        return self._pause > 0

    def failed(self, retry_after: float) -> None:
        """The API server failed; `retry_after`: the seconds that it wants us to wait."""
        now = self._clock()
        if now >= self._not_before:  # requests that fail together count once
            self._pause = min(max(self._pause * 2, FIRST), LAST)
        self._not_before = max(self._not_before, now + max(self._pause, retry_after))

    def answered(self) -> None:
        """The API server answers again."""
        self._pause = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a request may be made; without trouble at once, and beside others."""
        if not self.is_on:
            yield
            return
        async with self._one:
            await asyncio.sleep(max(0.0, self._not_before - self._clock()))
            yield


class ThrottledApi(Api):
    """The API server of `kubeconfig`, else of KUBECONFIG, else of this pod's cluster.

    `may_write` is called before every write; what it raises is raised.
    """

    def __init__(
        self,
        timeout: float = 30.0,
        may_write: Callable[[], None] = lambda: None,
        kubeconfig: Path | str | None = None,
    ) -> None:
        choice = Choice(kubeconfig=str(kubeconfig) if kubeconfig else None)
        super().__init__(choice, timeout=timeout, manager=MANAGER, connections=_CONNECTIONS)
        self.may_write = may_write
        self.throttle = Throttle()
        self.requests: dict[tuple[str, str], int] = {}
        """How many there were, by method and outcome."""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request, when its turn comes."""
        async with self.throttle.turn():
            if method != "GET":
                self.may_write()
            try:
                answer = await super().request(method, path, body, query=query, content_type=content_type)
            except ApiError as error:
                self._count(method, str(error.status))
                if error.passes:
                    self.throttle.failed(error.retry_after)
                else:
                    self.throttle.answered()
                raise
            self._count(method, "ok")
            self.throttle.answered()
            return answer

    def _count(self, method: str, outcome: str) -> None:
        self.requests[method, outcome] = self.requests.get((method, outcome), 0) + 1
