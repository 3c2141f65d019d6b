"""Kopf watches streams, relays and their objects, and each event goes to the controller.

The only module that knows Kopf. Its handlers with memory (create, update, delete) are not used: they keep their
progress in annotations of every object, and a reconciler that looks at the whole stream each time needs none.

A request that fails is repeated without end, with growing pauses: while a kind cannot be watched, because a right is
missing or the API server is in trouble, lists show what changes, and all other kinds are watched as before. Whatever
else ends Kopf ends the process, and Kubernetes starts it again (docs/decisions/0011).
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import kopf

from epochal.kube.access import Access
from epochal.kube.api import RELAY, STREAM, retry_after_of
from epochal.resources.cluster.stream import SELECTOR
from epochal.resources.crd import GROUP
from epochal.service.process import stop_on_signals
from epochal_operator.api import CHILDREN, Throttle
from epochal_operator.controller import Controller
from epochal_operator.settings import OperatorSettings

logger = logging.getLogger("epochal.operator")

_KINDS = (STREAM, RELAY, *CHILDREN)
_ALL_OPEN = 10.0
"""Seconds from the first watch until all kinds must be watched. Kopf never watches a kind that it did not find when it
started, as may happen for a moment where one of several API servers does not have a new definition yet."""
_CANCELS = 5
"""How often Kopf's tasks are cancelled at the end: cancelled once, some wait for others, or start new ones."""
_PAUSE = 0.5
"""Seconds for tasks to end before they are cancelled again."""
_KILL = 20
"""Seconds from the end of Kopf until it kills this process, if that still runs."""
_ADVICE = {
    401: "log in again, or give the operator another account",
    403: "give the operator its rights, which docs/operator.md lists",
    404: "the cluster's definition of it is missing",
}


class WatchEnded(Exception):
    """Kopf has ended, and with it all watches."""


class Watches:
    """Kopf, from its start to the end of the process.

    Used once: `watch`, and after all other parts have ended `end`.
    """

    def __init__(self, settings: OperatorSettings, controller: Controller, access: Access) -> None:
        self._settings = settings
        self._controller = controller
        self._access = access
        self._throttle = Throttle()
        self._session: aiohttp.ClientSession | None = None
        self._others: set[asyncio.Task[Any]] | None = None
        """The tasks that are older than Kopf's; None until Kopf starts."""
        self._requested: set[str] = set()
        """The kinds that Kopf has begun to watch."""
        self._failing: dict[str, int] = {}
        """The status of the last answer by the path of each request that fails: a kind, in a namespace."""
        self._incomplete = asyncio.Event()
        """Set if a kind is not watched although it should be."""

    async def watch(self, stop: asyncio.Event) -> None:
        """Watch streams, relays and their objects; signals set `stop`. Raises `WatchEnded` when Kopf ends."""
        await self._controller.listed.wait()  # by then all kinds are defined
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, retries=1)(self._log_in)
        for kind in _KINDS:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(self._handler(kind.kind))
        asyncio.get_running_loop().set_exception_handler(_report)
        self._others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=operator_settings(self._settings),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=self._incomplete,
        )
        stop_on_signals(stop)  # Kopf has just installed handlers of its own, which would end Kopf alone
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = [task.exception() for task in done if not task.cancelled()]
        error = next((error for error in failed if error is not None), None)
        raise WatchEnded(self._missing() if error is None else _why(error)) from error

    async def end(self) -> None:
        """End all of Kopf's tasks. The loop's own end would not do: it cancels each task only once."""
        for _ in range(_CANCELS):
            current = asyncio.current_task()
            left = set() if self._others is None else asyncio.all_tasks() - self._others - {current}
            if not left:
                break
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_PAUSE)
        if self._session is not None:
            await self._session.close()

    def _handler(self, kind: str) -> Callable[..., Any]:
        async def saw(event: Any, **_: Any) -> None:
            self._controller.saw(kind, event["type"], event["object"])

        return saw

    def _missing(self) -> str:
        """Why Kopf has ended without an error."""
        missing = [kind.plural for kind in _KINDS if kind.plural not in self._requested]
        return f"the API server did not know of {', '.join(missing)} yet" if missing else "Kopf has ended"

    # ---- requests ----

    async def _log_in(self, **_: Any) -> kopf.AiohttpSession | None:
        """The operator's own session; only once, because another session would have the same credentials."""
        if self._session is not None:
            return None
        self._session = self._access.session(0, self._send)
        return kopf.AiohttpSession(server=self._access.server, aiohttp_session=self._session)

    async def _send(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request when its turn comes, with the credentials of that moment."""
        self._note_request(_what(request.url.path))
        async with self._throttle.turn():
            request.headers.update(await self._access.headers())
            request.server_hostname = self._access.server_name
            try:
                response = await send(request)
            except (aiohttp.ClientError, OSError):
                self._throttle.failed(0.0)
                raise
            if response.status == 429 or response.status >= 500:
                self._throttle.failed(retry_after_of(response.headers))
            else:
                self._throttle.answered()
        self._note_answer(request.url.path, response.status, response.reason or "")
        return response

    def _note_request(self, plural: str) -> None:
        if plural not in {kind.plural for kind in _KINDS}:
            return
        if not self._requested:
            asyncio.get_running_loop().call_later(_ALL_OPEN, self._check_complete)
        self._requested.add(plural)

    def _check_complete(self) -> None:
        if any(kind.plural not in self._requested for kind in _KINDS):
            self._incomplete.set()

    def _note_answer(self, path: str, status: int, reason: str) -> None:
        """Log that something cannot be watched, once for each status, and that it can be again.

        Only for answers after which Kopf tries again: others end it, and are reported as the reason of that.
        """
        if status == 403 or status >= 500:
            if self._failing.get(path) != status:
                logger.warning("%s; until then only lists show what changes", _cannot(path, status, reason))
            self._failing[path] = status
        elif status < 400 and self._failing.pop(path, None) is not None:
            logger.info("%s can be watched again", _what(path))


class _Pauses:
    """The pauses between the attempts of one request, growing and without an end; Kopf iterates once a request."""

    def __init__(self, first: float, last: float) -> None:
        self._first = first
        self._last = last

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            yield pause
            pause = min(2 * pause, self._last)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that belongs to no task. One in a callback of Kopf comes when Kopf ends, and means nothing."""
    error = context.get("exception")
    frames = traceback.walk_tb(error.__traceback__) if error is not None else ()
    if any(frame.f_globals.get("__name__", "").startswith("kopf.") for frame, _ in frames):
        logger.debug("Kopf: %s", context["message"])
    else:
        loop.default_exception_handler(context)


def operator_settings(own: OperatorSettings) -> kopf.OperatorSettings:
    """How Kopf behaves here."""
    settings = kopf.OperatorSettings()
    # Not the operator's own finalizer: without handlers of deletions, Kopf removes this one from each object.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = _KILL
    settings.scanning.disabled = True  # no right to list namespaces and definitions is needed
    settings.queueing.worker_limit = 20
    settings.networking.request_timeout = own.request_timeout
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = _Pauses(own.retry_first, own.retry_last)
    settings.watching.inactivity_timeout = own.watch_silence
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = 500
    for kind in CHILDREN:
        settings.watching.label_selectors[kind.group, kind.plural] = SELECTOR
    return settings


def _why(error: BaseException) -> str:
    """What ended Kopf, on one line, and what to do: its errors show the request only in their cause."""
    origin: BaseException | None = error
    while origin is not None and not isinstance(origin, aiohttp.ClientResponseError):
        origin = origin.__cause__
    if origin is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return _cannot(origin.request_info.url.path, origin.status, origin.message)


def _cannot(path: str, status: int, reason: str) -> str:
    advice = _ADVICE.get(status, "that is the API server's to mend; its own log says more")
    return f"{_what(path)} cannot be watched: {status} {reason}; {advice}"


def _what(path: str) -> str:
    """The plural of the kind that a path of the API names last."""
    return path.rpartition("/")[2]
