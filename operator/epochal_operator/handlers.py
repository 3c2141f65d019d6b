"""Kopf, in the operator's own loop: it watches, reconnects and lists again after 410; events go to the controller.

The only module that knows Kopf. Its handlers with memory (create, update, delete) are not used: they keep their
progress in annotations of every object, and a reconciler that looks at the whole each time needs none.

`kopf.operator` takes the whole process: it ends when a resource cannot be watched for some seconds, it looks once for
what can be watched, it takes SIGTERM and SIGINT over, and at its end it cancels every task that began after it. So its
tasks are started with `kopf.spawn_tasks`, and only these are cancelled when one of them has ended; then new ones
are started, after a list of everything. Every task inherits the context that it was created in: that is how the tasks
of Kopf are known.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any

import aiohttp
import kopf

from epochal.backoff import Backoff
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
"""Seconds after the first watch was requested; Kopf never requests one of what it did not find when it began."""
_LONG = 60.0
"""Seconds after which what ended the watching is another story than what ended it before."""
_CANCELS = 5
"""How often a task of Kopf is cancelled: some of them go on after the first time."""
_PAUSE = 0.5
"""Seconds for tasks to end before they are cancelled again."""
_ADVICE = {
    401: "log in again, or give the operator another account",
    403: "give the operator its rights, which docs/operator.md lists",
    404: "the cluster's definition of it is missing",
}


async def watch(settings: OperatorSettings, controller: Controller, access: Access, stop: asyncio.Event) -> None:
    """Watch streams, relays and their children for ever; signals set `stop`.

    What cannot be listed is not watched either: watching begins, and begins again, after a list of everything.
    """
    loop = asyncio.get_running_loop()
    loop.set_task_factory(_make_task)
    loop.set_exception_handler(_report)
    await controller.listed.wait()
    backoff, reported = Backoff(settings.retry_first, settings.retry_last, jitter=0), ""
    while True:
        began = monotonic()
        why = await _Kopf(settings, controller, access, stop).run()
        if monotonic() - began > _LONG:
            backoff.reset()
            reported = ""
        if why != reported:
            logger.warning("watching begins again, until then only lists show what changes: %s", why)
        reported = why
        await backoff.pause()
        await controller.list_again()


class _Kopf:
    """Kopf, from one start to its end."""

    def __init__(self, settings: OperatorSettings, controller: Controller, access: Access, stop: asyncio.Event) -> None:
        self._settings = settings
        self._controller = controller
        self._access = access
        self._stop_process = stop
        self._stop = asyncio.Event()
        self._throttle = Throttle()
        self._requested: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._why = "Kopf has ended"
        self.tasks: set[asyncio.Task[Any]] = set()
        """Those that Kopf has started and that go on."""

    async def run(self) -> str:
        """Watch until it ends; returns why."""
        context = copy_context()
        context.run(_RUN.set, self)
        return await asyncio.create_task(self._watch(), name="kopf", context=context)

    async def _watch(self) -> str:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, retries=1)(self._log_in)
        for kind in _KINDS:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(self._handler(kind.kind))
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
            stop_on_signals(self._stop_process)  # Kopf has just put its own handlers in place
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failed = [task.exception() for task in done if not task.cancelled()]
            return next((_why(error) for error in failed if error is not None), self._why)
        finally:
            own.execution.executor.shutdown(wait=False)
            await self._end()

    async def _end(self) -> None:
        """End all that Kopf has started."""
        for _ in range(_CANCELS):
            if not self.tasks:
                break
            for task in self.tasks:
                task.cancel()
            await asyncio.wait(set(self.tasks), timeout=_PAUSE)
        if self._session is not None:
            await self._session.close()

    def _handler(self, kind: str) -> Callable[..., Any]:
        async def saw(event: Any, **_: Any) -> None:
            self._controller.saw(kind, event["type"], event["object"])

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
            return response

    def _note(self, plural: str) -> None:
        if plural not in {kind.plural for kind in _KINDS}:
            return
        if not self._requested:
            asyncio.get_running_loop().call_later(_ALL_OPEN, self._end_unless_all)
        self._requested.add(plural)

    def _end_unless_all(self) -> None:
        missing = [kind.plural for kind in _KINDS if kind.plural not in self._requested]
        if missing:
            self._why = f"the API server did not know of {', '.join(missing)} yet"
            self._stop.set()


_RUN: ContextVar[_Kopf | None] = ContextVar("_RUN", default=None)
"""The run of Kopf that the current task belongs to."""


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, /, **options: Any) -> asyncio.Task[Any]:
    """A task; it is noted with the run of Kopf that starts it."""
    task = asyncio.Task(work, loop=loop, **options)
    run = _RUN.get()
    if run is not None:
        run.tasks.add(task)
        task.add_done_callback(run.tasks.discard)
        task.add_done_callback(_take_error)
    return task


def _take_error(task: asyncio.Task[Any]) -> None:
    """Kopf does not look at the errors of all of its tasks, which asyncio would complain of."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("Kopf: %s: %s", task.get_name(), error)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error that no task has: in callbacks of Kopf it happens at its end, and means nothing."""
    error = context.get("exception")
    frames = traceback.walk_tb(error.__traceback__) if error is not None else ()
    if any(frame.f_globals.get("__name__", "").startswith("kopf.") for frame, _ in frames):
        logger.debug("Kopf: %s", context["message"])
    else:
        loop.default_exception_handler(context)


def operator_settings(own: OperatorSettings) -> kopf.OperatorSettings:
    """How Kopf behaves here."""
    settings = kopf.OperatorSettings()
    # Not our own one: without handlers of deletions Kopf removes the one of this name from every object.
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
        settings.watching.label_selectors[kind.group, kind.plural] = SELECTOR
    return settings


def _why(error: BaseException) -> str:
    """What ended Kopf, on one line, and what to do: its errors show the request only in their cause."""
    origin: BaseException | None = error
    while origin is not None and not isinstance(origin, aiohttp.ClientResponseError):
        origin = origin.__cause__
    if origin is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    what = origin.request_info.url.path.rpartition("/")[2]
    advice = _ADVICE.get(origin.status, "that is the API server's to mend; its own log says more")
    return f"{what} cannot be watched: {origin.status} {origin.message}; {advice}"
