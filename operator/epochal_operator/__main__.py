"""The command `epochal-operator`.

Exit codes: those of every service; 3 when the lease was lost to another operator.
"""

import asyncio
import logging
import os
from typing import Annotated, Any

import typer

from epochal.errors import Unavailable
from epochal.kube.api import ApiError
from epochal.resources.crd import crd_text
from epochal.service.process import command_line
from epochal.service.process import run as run_process
from epochal_operator.api import ThrottledApi
from epochal_operator.app import operate
from epochal_operator.ownership import release_all
from epochal_operator.settings import OperatorSettings, own_operator
from epochal_operator.telemetry import write_json

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
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Look after streams until SIGTERM or Ctrl-C. Every setting can also come from EPOCHAL_OPERATOR_*."""
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
def crd() -> None:
    """Print the definition of the custom resource Stream."""
    print(crd_text(), end="")


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
    logging.getLogger("kopf").setLevel(logging.CRITICAL)  # `handlers` reports what matters
    return await operate(settings, stop, lambda what: print(f"ready {what}", flush=True))


def main() -> None:
    """Entry point of the console script."""
    _app()


if __name__ == "__main__":
    main()
