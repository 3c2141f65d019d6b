"""The operator's requests to the Kubernetes API: counted, refused without the lease, and slowed while it is in trouble.

After an answer of 429 or 5xx, or none at all, requests are sent one at a time, at most one a second, and not before the
`Retry-After` has passed. The first good answer ends this.
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
"""The kinds of the objects that belong to streams and relays."""
FIRST, LAST = 1.0, 20.0
"""Seconds between requests after the first failure, and the most after several."""
_CONNECTIONS = 64


class Throttle:
    """Slows requests down while the API server is in trouble."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._not_before = 0.0
        self._one = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        """Whether the API server is in trouble: its last answer was a failure."""
        return self._pause > 0

    def failed(self, retry_after: float) -> None:
        """Note a failure. `retry_after`: the seconds to wait that the API server asked for, or 0."""
        now = self._clock()
        if now >= self._not_before:  # requests that fail together count once
            self._pause = min(max(self._pause * 2, FIRST), LAST)
        self._not_before = max(self._not_before, now + max(self._pause, retry_after))

    def answered(self) -> None:
        """Note a good answer: requests are not slowed down any more."""
        self._pause = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a request may be sent: no wait without trouble, else one after the other."""
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
        """The number of requests by method and outcome."""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send one request when its turn comes; see `Api.request`."""
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
