"""Kopf: it watches, reconnects, lists again after 410, and backs off; each event goes on to the controller.

Apart from the controller, and the only module that knows Kopf. Its handlers with memory (create, update, delete) are
not used: they keep their progress in annotations of every object, and one that looks at the whole each time needs none.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import kopf

from epochal.resources.cluster.names import SELECTOR
from epochal.resources.crd import GROUP
from epochal_operator.api import CHILDREN, STREAM, Kind
from epochal_operator.controller import Controller
from epochal_operator.settings import Settings


async def watch(settings: Settings, controller: Controller, stop: asyncio.Event) -> None:
    """Watch streams and their children until `stop` is set."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, retries=3)(_login)
    for kind in (STREAM, *CHILDREN):
        group, version = _group_of(kind)
        kopf.on.event(group, version, kind.plural, registry=registry)(_handler(kind.kind, controller))
    own = operator_settings(settings)
    try:
        await kopf.operator(
            registry=registry,
            settings=own,
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=stop,
        )
    finally:
        own.execution.executor.shutdown(wait=False)  # its idle thread, from the login, would seem to hang at the end


def operator_settings(own: Settings) -> kopf.OperatorSettings:
    """How Kopf behaves here."""
    settings = kopf.OperatorSettings()
    # Not our own one: that which Kopf is told it takes off every object, for it has no handlers of deletions here.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False
    settings.scanning.disabled = True  # no right to list namespaces and definitions is needed
    settings.queueing.worker_limit = 100
    settings.networking.request_timeout = 60
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21)
    settings.watching.inactivity_timeout = own.watch_silence
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = 500
    for kind in CHILDREN:
        settings.watching.label_selectors[_group_of(kind)[0], kind.plural] = SELECTOR
    return settings


def _handler(kind: str, controller: Controller) -> Callable[..., Any]:
    async def saw(event: Any, **_: Any) -> None:
        controller.saw(kind, event["type"], event["object"])

    return saw


def _group_of(kind: Kind) -> tuple[str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)
