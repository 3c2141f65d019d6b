"""Kopf: it watches, reconnects and lists again after 410; each event goes on to the controller.

Apart from the controller, and the only module that knows Kopf. Its handlers with memory (create, update, delete) are
not used: they keep their progress in annotations of every object, and one that looks at the whole each time needs none.

Kopf means to be the whole process: a resource that cannot be watched for some seconds ends it, it looks once for what
can be watched, it takes signals over, at its end it cancels every task that began after it, and it may wait for ever
then for one that it cancelled. So it has a thread and an event loop of its own, which are given up when a part of it
has ended, and new ones begin (fault 39).
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import aiohttp
import kopf

from epochal.kube.access import Access
from epochal.kube.api import STREAM, Kind, retry_after_of
from epochal.resources.cluster.names import SELECTOR
from epochal.resources.crd import GROUP
from epochal_operator.api import CHILDREN, Throttle
from epochal_operator.controller import Controller
from epochal_operator.settings import Settings

logger = logging.getLogger("epochal.operator")

_KINDS = (STREAM, *CHILDREN)
_ALL_OPEN = 10.0
"""Seconds after the first watch was asked for; Kopf never asks for one of what it did not find when it began."""
_LONG = 60.0
"""Seconds after which what ended the watching is another story than what ended it before."""
_PATIENCE = 5.0
"""Seconds for Kopf to end in order."""
_TIMES = 5
_ADVICE = {
    401: "log in anew, or give the operator another account",
    403: "give the operator its rights, which docs/operator.md lists",
    404: "the cluster's definition of it is missing",
}


async def watch(settings: Settings, controller: Controller, access: Access) -> None:
    """Watch streams and their children for ever.

    What cannot be listed is not watched either: watching begins, and begins anew, after a list of everything.
    """
    await controller.listed.wait()
    pause, told = settings.retry_first, ""
    while True:
        began = monotonic()
        why = await _Kopf(settings, controller, access).run()
        if monotonic() - began > _LONG:
            pause, told = settings.retry_first, ""
        if why != told:
            logger.warning("watching begins anew, until then only lists tell what changes: %s", why)
        told = why
        await asyncio.sleep(pause)
        pause = min(pause * 2, settings.retry_last)
        await controller.list_again()


class _Kopf:
    """Kopf, from one start to its end."""

    def __init__(self, settings: Settings, controller: Controller, access: Access) -> None:
        self._settings, self._controller, self._access = settings, controller, access
        self._ours, self._loop = asyncio.get_running_loop(), asyncio.new_event_loop()
        self._stop, self._ended = asyncio.Event(), self._ours.create_future()
        self._throttle = Throttle()
        self._asked_for: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._why = "Kopf has ended"

    async def run(self) -> str:
        """Watch until it ends; returns why."""
        threading.Thread(target=self._main, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(self._ended)
        finally:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.wait([self._ended], timeout=_PATIENCE)
        return self._why

    # ---- in the thread ----

    def _main(self) -> None:
        self._loop.set_exception_handler(lambda _, context: logger.debug("Kopf: %s", context["message"]))
        try:
            self._loop.run_until_complete(self._watch())
        except (Exception, asyncio.CancelledError) as error:
            self._why = _why(error)
        finally:
            self._loop.close()
        with suppress(RuntimeError):  # the operator itself has ended meanwhile
            self._ours.call_soon_threadsafe(self._ended.set_result, None)

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, retries=1)(self._log_in)
        for kind in _KINDS:
            group, version = _group_of(kind)
            kopf.on.event(group, version, kind.plural, registry=registry)(self._handler(kind.kind))
        own = operator_settings(self._settings)
        try:
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=own,
                standalone=True,
                clusterwide=not self._settings.namespaces,
                namespaces=self._settings.namespaces,
                stop_flag=self._stop,
            )
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            own.execution.executor.shutdown(wait=False)
            await self._end()

    async def _end(self) -> None:
        """End all that Kopf has begun; some of it needs to be told several times."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(_TIMES):
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=_PATIENCE / _TIMES / 2)
        if self._session is not None:
            await self._session.close()

    def _handler(self, kind: str) -> Callable[..., Any]:
        async def saw(event: Any, **_: Any) -> None:
            self._ours.call_soon_threadsafe(self._controller.saw, kind, event["type"], event["object"])

        return saw

    async def _log_in(self, **_: Any) -> kopf.AiohttpSession | None:
        """What the operator itself has; once, for with another session it would be as wrong."""
        if self._session is not None:
            return None
        self._session = self._access.session(0, self._send)
        return kopf.AiohttpSession(server=self._access.server, aiohttp_session=self._session)

    async def _send(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request when its turn comes, as who we are by then."""
        self._note(request.url.path.rpartition("/")[2])
        async with self._throttle.turn():
            headers = asyncio.run_coroutine_threadsafe(self._access.headers(), self._ours)
            for name, value in (await asyncio.wrap_future(headers)).items():
                request.headers[name] = value
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
            return response

    def _note(self, plural: str) -> None:
        if plural not in {kind.plural for kind in _KINDS}:
            return
        if not self._asked_for:
            self._loop.call_later(_ALL_OPEN, self._end_unless_all)
        self._asked_for.add(plural)

    def _end_unless_all(self) -> None:
        missing = [kind.plural for kind in _KINDS if kind.plural not in self._asked_for]
        if missing:
            self._why = f"the API server did not know of {', '.join(missing)} yet"
            self._stop.set()


def operator_settings(own: Settings) -> kopf.OperatorSettings:
    """How Kopf behaves here."""
    settings = kopf.OperatorSettings()
    # Not our own one: that which Kopf is told it takes off every object, for it has no handlers of deletions here.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill this process ten minutes after Kopf has ended
    settings.scanning.disabled = True  # no right to list namespaces and definitions is needed
    settings.queueing.worker_limit = 20
    settings.networking.request_timeout = own.request_timeout
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = (1, 2)  # then it ends, and is started again
    settings.watching.inactivity_timeout = own.watch_silence
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = 500
    for kind in CHILDREN:
        settings.watching.label_selectors[_group_of(kind)[0], kind.plural] = SELECTOR
    return settings


def _group_of(kind: Kind) -> tuple[str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version


def _why(error: BaseException) -> str:
    """What ended Kopf, on one line, and what to do: its errors say what was asked for only by what they come from."""
    origin: BaseException | None = error
    while origin is not None and not isinstance(origin, aiohttp.ClientResponseError):
        origin = origin.__cause__
    if origin is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    what = origin.request_info.url.path.rpartition("/")[2]
    advice = _ADVICE.get(origin.status, "that is the API server's to mend; its own log says more")
    return f"{what} cannot be watched: {origin.status} {origin.message}; {advice}"
