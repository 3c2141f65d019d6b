"""What a run talks to: a catalog by its URL, or a whole cluster with `--kube`.

The choice comes before the command. The code that reaches a cluster is loaded only when one was chosen.
"""

import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from epochal.cli.io import signals
from epochal.cli.io.terminal import note
from epochal.errors import UsageError

if TYPE_CHECKING:
    from epochal.client.catalog.directory import Reach
    from epochal.kube import Choice, Cluster
    from epochal.kube.user_api import DeclaredObjects

T = TypeVar("T")

_choice: "Choice | None" = None
_cluster: "Cluster | None" = None


def choose(choice: "Choice | None") -> None:
    """Set the cluster of this run, from the options before the command."""
    global _choice
    _choice = choice


def chosen() -> "Choice | None":
    """The cluster that was chosen, or None."""
    return _choice


def run(command: Coroutine[None, None, T]) -> T:
    """Run one asynchronous command to its end, with the chosen cluster open."""
    return signals.run(command if _choice is None else _in_cluster(_choice, command))


async def _in_cluster(choice: "Choice", command: Coroutine[None, None, T]) -> T:
    try:
        async with open_cluster(choice):
            return await command
    finally:
        command.close()  # also when the cluster could not be opened


@asynccontextmanager
async def open_cluster(choice: "Choice") -> "AsyncIterator[Cluster]":
    """Open the chosen cluster for this run."""
    global _cluster
    from epochal.kube import Cluster

    async with Cluster(choice, tell=note) as cluster:
        _cluster = cluster
        try:
            yield cluster
        finally:
            _cluster = None


def cluster() -> "Cluster":
    """The open cluster."""
    if _cluster is None:
        raise UsageError("this needs a cluster: write epochal --kube")
    return _cluster


def declared_objects(kind: str) -> "DeclaredObjects":
    """The objects of a kind, `Stream` or `Relay`, in the open cluster."""
    return cluster().relays if kind == "Relay" else cluster().streams


def reach() -> "Reach | None":
    """How to reach publishers whose addresses do not lead there from here; None without a cluster."""
    return None if _cluster is None else _cluster.reach


def name_of(address: str) -> str:
    """A catalog's URL for messages, with its service in a cluster: a forwarded port alone says nothing."""
    if _cluster is None or not _cluster.catalog_name:
        return address
    return f"{address} (service {_cluster.catalog_name})"


def advice() -> str | None:
    """What to do when the catalog of a cluster does not answer."""
    if _cluster is None:
        return None
    return f"it is that of context {_cluster.access.name}, by port-forwarding; epochal --kube doctor says what is wrong"


async def way(address: str) -> str:
    """The address by which this machine reaches one that the catalog reports."""
    return address if _cluster is None else await _cluster.reach(address)


async def where(url: str | None) -> str:
    """The URL by which this machine reaches the catalog: that of the chosen cluster, unless `--catalog` names one.

    EPOCHAL_CATALOG says where the catalog is when no cluster is chosen; with one it would contradict the choice.
    """
    from epochal.client.catalog.url import catalog_url

    if _cluster is None:
        return catalog_url(url)
    if url is None or url == os.environ.get("EPOCHAL_CATALOG"):
        return await _cluster.catalog()
    return await _cluster.reach(catalog_url(url))
