"""The operator as a whole: its parts started and stopped in their order.

Nothing is watched or written before the lease is held, and all ends when it is lost: another operator acts by then.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from epochal.client.catalog.catalog import CatalogClient
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.catalog_sync import CatalogSync
from epochal_operator.controller import Controller
from epochal_operator.handlers import watch
from epochal_operator.lease import Leadership, LeaseLost
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings
from epochal_operator.telemetry import OperatorTelemetry, Web

EXIT_LEASE_LOST = 3

logger = logging.getLogger("epochal.operator")


async def operate(settings: OperatorSettings, stop: asyncio.Event, ready: Callable[[str], None]) -> int:
    """Run until `stop` is set or the lease is lost; returns the exit code. `ready` is called once it acts.

    Raises `ConfigError` and `Unavailable` when it cannot start.
    """
    async with AsyncExitStack() as stack:
        lease_api = await stack.enter_async_context(ThrottledApi(settings.lease_duration / 5))
        leadership = Leadership(settings, lease_api)
        api = await stack.enter_async_context(ThrottledApi(settings.request_timeout, leadership.check))
        catalog = await stack.enter_async_context(CatalogClient(settings.catalog, patience=0.0, timeout=5.0))
        telemetry = OperatorTelemetry()
        stack.callback(telemetry.close)
        controller = _controller(settings, api, catalog, leadership, telemetry)

        def is_ready() -> bool:
            return controller.synced or not leadership.held

        await stack.enter_async_context(Web(settings, telemetry, lambda: controller.healthy, is_ready))
        stack.push_async_callback(leadership.release)  # a stop may come just when it was acquired
        if not await _unless(stop, leadership.acquire()):
            return 0
        ready(f"lease={settings.lease_namespace}/{settings.lease_name}")
        return await _act(settings, api, controller, leadership, stop)


def _controller(
    settings: OperatorSettings,
    api: ThrottledApi,
    catalog: CatalogClient,
    leadership: Leadership,
    telemetry: OperatorTelemetry,
) -> Controller:
    cache = Cache()
    catalog_sync = CatalogSync(catalog, leadership.check)
    reporter = Reporter(api, cache, settings.frontier_interval)
    claims = Claims(settings.operator, cache)
    reconciler = Reconciler(settings, api, cache, catalog_sync, reporter, claims)
    controller = Controller(settings, api, reconciler, telemetry)
    telemetry.observe(
        requests=api.requests,
        streams=lambda: len(claims.streams),
        foreign=lambda: claims.foreign,
        ready=lambda: sum(map(_is_ready, claims.streams)),
        queued=lambda: len(controller.queue),
        leading=lambda: leadership.held,
    )
    return controller


async def _act(
    settings: OperatorSettings, api: ThrottledApi, controller: Controller, leadership: Leadership, stop: asyncio.Event
) -> int:
    """Everything at once, until one of it ends."""
    listing = asyncio.create_task(controller.resync_forever(), name="resync")
    keeping = asyncio.create_task(leadership.keep(), name="lease")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    tasks: list[asyncio.Task[Any]] = [listing, keeping, stopping]
    try:
        running: list[Coroutine[Any, Any, Any]] = [
            watch(settings, controller, api.access, stop),
            controller.sweep_forever(),
        ]
        running += [controller.work() for _ in range(settings.workers)]
        tasks += map(asyncio.ensure_future, running)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a bug ends the process; Kubernetes starts it again
    except LeaseLost as error:
        logger.error("stopping: %s", error)
        return EXIT_LEASE_LOST
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    logger.info("stopping")
    return 0


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Await `work` unless `stop` comes first; returns whether it was done."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if not task.done():
            task.cancel()
    if tasks[0].done() and not tasks[0].cancelled():
        tasks[0].result()
    return not stop.is_set()


def _is_ready(stream: dict[str, Any]) -> bool:
    conditions = stream.get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
