"""What the shell can complete in a command line: kinds of objects, and names of streams.

The shell calls it while the user types: it answers at once or not at all, and never prints a message on the terminal.
"""

import asyncio
import os
from typing import TYPE_CHECKING

import typer

from epochal.cli.io.documents import Documents
from epochal.client.catalog.url import catalog_url
from epochal.errors import EpochalError
from epochal.resources.names import check_name, check_namespace

if TYPE_CHECKING:
    from epochal.kube import Choice

TIMEOUT = 1.0
"""Seconds that the catalog may take; a user who presses Tab does not wait longer."""

CLUSTER_TIMEOUT = 3.0
"""Seconds that an API server may take, which may be far away."""

LISTED = ("streams", "publishers", "writers", "subscriptions", "relays")


def complete_kinds(incomplete: str) -> list[str]:
    """The kinds that `get` lists; streams come first, because `describe` and `delete` take nothing else."""
    return [kind for kind in LISTED if kind.startswith(incomplete)]


def complete_streams(context: typer.Context, incomplete: str) -> list[str]:
    """Streams as NS/NAME, and those of the current namespace also as NAME; none if the catalog does not answer."""
    namespace = context.params.get("namespace")
    root = context.find_root().params
    if root.get("kube"):
        return find_objects(incomplete, root.get("kube_context"), root.get("kubeconfig"), namespace)
    return find_streams(incomplete, context.params.get("catalog"), namespace)


def complete_streams_of(context: typer.Context, incomplete: str) -> list[str]:
    """The same for a command that takes several names, without those that are on the line already."""
    given = context.params.get("names") or ()
    return [name for name in complete_streams(context, incomplete) if name not in given]


def find_streams(incomplete: str, catalog: str | None, namespace: str | None) -> list[str]:
    """The names of streams that begin with `incomplete`, from a catalog."""
    try:
        found = asyncio.run(_all_streams(catalog_url(catalog)))
    except (EpochalError, TimeoutError, OSError, KeyError, TypeError):
        return []
    return _beginning(incomplete, found, namespace)


def find_objects(incomplete: str, context: str | None, kubeconfig: str | None, namespace: str | None) -> list[str]:
    """The same from the `Stream` objects of a cluster: one call, where asking its catalog would take four."""
    from epochal.kube import Choice, context_namespace

    choice = Choice(context, kubeconfig)
    try:
        found = asyncio.run(_all_objects(choice))
        return _beginning(incomplete, found, namespace or context_namespace(choice))
    except (EpochalError, TimeoutError, OSError, KeyError, TypeError):
        return []


def _beginning(incomplete: str, found: list[tuple[str, str]], namespace: str | None) -> list[str]:
    found = [(space, name) for space, name in found if _can_be_typed(space, name)]
    namespace = namespace or os.environ.get("EPOCHAL_NAMESPACE") or "default"
    short = [name for space, name in found if space == namespace]
    return sorted(name for name in [*short, *map("/".join, found)] if name.startswith(incomplete))


def _can_be_typed(namespace: str, name: str) -> bool:
    """Whether these are valid names. A catalog could send something else, which a shell would run."""
    try:
        return bool(check_namespace(namespace) and check_name(name))
    except ValueError:
        return False


async def _all_objects(choice: "Choice") -> list[tuple[str, str]]:
    from epochal.kube import Cluster

    async with asyncio.timeout(CLUSTER_TIMEOUT), Cluster(choice) as cluster:
        return [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in await cluster.streams.all()]


async def _all_streams(url: str) -> list[tuple[str, str]]:
    async with asyncio.timeout(TIMEOUT), Documents(url, patience=0.0, timeout=TIMEOUT) as documents:
        return [(item["namespace"], item["name"]) for item in await documents.all("/v1/streams")]
