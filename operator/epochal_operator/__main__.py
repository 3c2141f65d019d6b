"""The command `epochal-operator`: starts and stops the parts of the operator in order.

Nothing is watched or written before the lease is held. When the lease is lost, or the watches end, the process ends,
and Kubernetes starts it again. No part of it is ever restarted within a process: this needs no code, as the operator
may be killed between any two writes anyway.

Exit codes: those of every service; 3 when the lease was lost to another operator; 4 when the watches have ended.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import Unavailable
from epochal.kube.api import ApiError, is_ready
from epochal.resources.cluster.children import release_of
from epochal.resources.cluster.rollout import Rollout
from epochal.resources.definitions import DEFINITIONS, all_crds, crd_text
from epochal.service.process import command_line
from epochal.service.process import run as run_process
from epochal_operator.actions import Actions
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.catalog_sync import CatalogSync, catalog_client
from epochal_operator.controller import Controller
from epochal_operator.handlers import WatchEnded, Watches
from epochal_operator.lease import Leadership, LeaseLost
from epochal_operator.ownership import Claims, release_all
from epochal_operator.reconciler import Reconciler
from epochal_operator.relays import RelayReconciler
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings, own_operator
from epochal_operator.telemetry import OperatorTelemetry, Web, write_json

EXIT_LEASE_LOST = 3
EXIT_WATCH_ENDED = 4

logger = logging.getLogger("epochal.operator")

_app = command_line("The Epochal operator: makes the streams that are declared in a Kubernetes cluster run there.")


@_app.command()
def run(
    catalog: Annotated[str | None, typer.Option(help="URL of the catalog, as pods reach it.")] = None,
    image: Annotated[str | None, typer.Option(help="Image of the publisher.")] = None,
    namespaces: Annotated[str | None, typer.Option(help="Namespaces to look after, by comma. [default: all]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 0.0.0.0]")] = None,
    port: Annotated[int | None, typer.Option(help="Port of /healthz and /readyz. [default: 8705]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /metrics. [default: 8706]")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. [default: text]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Look after streams and relays until SIGTERM or Ctrl-C. Every setting can also come from EPOCHAL_OPERATOR_*."""
    given = {name: value for name, value in locals().items() if name != "exit_with_stdin"}
    run_process("epochal-operator", lambda stop: _run(stop, given), exit_with_stdin=exit_with_stdin)


@_app.command()
def release(
    settle: Annotated[float, typer.Option(help="Seconds for which no stream must have had the finalizer.")] = 15.0,
    namespaces: Annotated[str | None, typer.Option(help="Only these namespaces, by comma. [default: all]")] = None,
    operator: Annotated[
        str | None, typer.Option(help="Whose: NAMESPACE/NAME of its lease. [default: that of EPOCHAL_OPERATOR_LEASE_*]")
    ] = None,
) -> None:
    """Remove the operator's finalizer from the streams that it looks after, so that they can be deleted without it."""
    given = namespaces if namespaces is not None else os.environ.get("EPOCHAL_OPERATOR_NAMESPACES", "")
    parts = [part.strip() for part in given.split(",") if part.strip()]
    run_process("epochal-operator", lambda stop: _release(operator or own_operator(), parts, settle))


@_app.command()
def crd(
    resource: Annotated[str | None, typer.Argument(help="streams or relays. [default: both]")] = None,
) -> None:
    """Print the definitions of the custom resources Stream and Relay."""
    if resource is not None and resource not in DEFINITIONS:
        raise typer.BadParameter(f"{resource!r} is not one of {', '.join(DEFINITIONS)}")
    print(all_crds() if resource is None else crd_text(resource), end="")


async def _release(operator: str, namespaces: list[str], settle: float) -> int:
    async with ThrottledApi() as api:
        try:
            count = await release_all(api, operator, namespaces, settle)
        except ApiError as error:
            raise Unavailable(str(error)) from None
    print(f"released {count} streams of the operator {operator}")
    return 0


async def _run(stop: asyncio.Event, given: dict[str, Any]) -> int:
    settings = OperatorSettings.read(**given)
    if settings.log_format == "json":
        write_json()
    logging.getLogger().setLevel(settings.log_level.upper())
    logging.getLogger("kopf").setLevel(logging.CRITICAL)  # `handlers` logs what matters
    return await operate(settings, stop, lambda what: print(f"ready {what}", flush=True))


async def operate(settings: OperatorSettings, stop: asyncio.Event, ready: Callable[[str], None]) -> int:
    """Run until `stop` is set, the lease is lost or the watches end; returns the exit code.

    `ready` is called once the lease is held.

    Raises `ConfigError` and `Unavailable` when it cannot start.
    """
    async with AsyncExitStack() as stack:
        lease_api = await stack.enter_async_context(ThrottledApi(settings.lease_duration / 5))
        leadership = Leadership(settings, lease_api)
        api = await stack.enter_async_context(ThrottledApi(settings.request_timeout, leadership.check))
        catalog = await stack.enter_async_context(catalog_client(settings.catalog))
        telemetry = OperatorTelemetry()
        stack.callback(telemetry.close)
        controller = _controller(settings, api, catalog, leadership, telemetry)

        def synced_or_standing_by() -> bool:
            return controller.synced or not leadership.held

        await stack.enter_async_context(Web(settings, telemetry, lambda: controller.healthy, synced_or_standing_by))
        watches = Watches(settings, controller, api.access)
        stack.push_async_callback(watches.end)
        stack.push_async_callback(leadership.release)  # before it is acquired: a stop may come in the next moment
        if not await _unless(stop, leadership.acquire()):
            return 0
        ready(f"lease={settings.lease_namespace}/{settings.lease_name}")
        return await _act(settings, controller, watches, leadership, stop)


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
    actions = Actions(api, cache, reporter)
    rollout = Rollout(release_of(settings.cluster), settings.rollout_streams, settings.rollout_patience)
    reconciler = Reconciler(settings, api, cache, catalog_sync, reporter, claims, actions, rollout)
    relays = RelayReconciler(settings, cache, reporter, claims, actions)
    controller = Controller(settings, api, reconciler, relays, telemetry)
    telemetry.observe(
        requests=api.requests,
        streams=lambda: len(claims.streams),
        foreign=lambda: claims.foreign,
        ready=lambda: sum(map(is_ready, claims.streams)),
        queued=lambda: len(controller.queue),
        leading=lambda: leadership.held,
    )
    return controller


async def _act(
    settings: OperatorSettings, controller: Controller, watches: Watches, leadership: Leadership, stop: asyncio.Event
) -> int:
    """Run all parts until one of them ends; returns the exit code."""
    listing = asyncio.create_task(controller.resync_forever(), name="resync")
    keeping = asyncio.create_task(leadership.keep(), name="lease")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    tasks: list[asyncio.Task[Any]] = [listing, keeping, stopping]
    try:
        running: list[Coroutine[Any, Any, Any]] = [
            watches.watch(stop),
            controller.sweep_forever(),
        ]
        running += [controller.work() for _ in range(settings.workers)]
        tasks += map(asyncio.ensure_future, running)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a bug ends the process; Kubernetes starts it again
    except (LeaseLost, WatchEnded) as error:
        logger.error("stopping: %s", error)
        return EXIT_LEASE_LOST if isinstance(error, LeaseLost) else EXIT_WATCH_ENDED
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


def main() -> None:
    """Entry point of the console script."""
    _app()


if __name__ == "__main__":
    main()
