"""`epochal delete`: delete streams, and on a cluster relays, by name or by the manifests that declare them.

A deletion cannot be undone, so the command prints what is lost.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from epochal.catalog_api.answers import StreamInfo
from epochal.cli import target
from epochal.cli.connections import open_catalog
from epochal.cli.doctor import probes
from epochal.cli.io.terminal import note
from epochal.cli.listed_kinds import RELAYS, STREAMS
from epochal.cli.manifests import read_manifests
from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    CatalogOption,
    Manifests,
    NamespaceOption,
    OptionalKind,
    StreamsArgument,
    Timeout,
    chosen_objects,
)
from epochal.cli.target import run
from epochal.errors import EpochalError, StreamNotFound, TimedOut
from epochal.kube.user_api import NotThere

EPILOG = """\b
Kinds:
  stream
  relay    with --kube

\b
Examples:
  epochal delete stream demo/flights
  epochal delete stream/demo/flights stream/demo/delays --wait
  epochal delete -f examples/flights.yaml

It asks for no confirmation. Deleting a stream ends its publishers, its writers and its subscriptions, and loses its
history; standard error says what is lost. A stream of the same name may be declared again; it is another one. With
--wait the command ends once no publisher of the stream answers any more; status 4 if one does after --timeout.

With `epochal --kube delete` the Stream and Relay objects of the cluster are deleted, as kubectl delete does, and --wait
ends once they are gone."""

LOOK_AGAIN, LOOK_AT_MOST = 0.1, 2.0
"""Seconds between looks at publishers that still answer, and for one look."""
LOOK_FOR_OBJECTS = 0.5
"""Seconds between looks at objects of a cluster that are still there."""


class Named(NamedTuple):
    """An object by its kind, `Stream` or `Relay`, and its name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.namespace}/{self.name}"


def delete(
    kind: OptionalKind = None,
    names: StreamsArgument = None,
    filename: Manifests = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until its publishers have ended.")] = False,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete streams, by name or by their manifests; on a cluster relays too."""
    usage = "write `epochal delete stream NAME` or `epochal delete -f FILE`"
    if bool(filename) == (kind is not None):
        raise typer.BadParameter(usage)
    if filename:
        manifests = read_manifests(filename, namespace)
        wanted = [Named(each.kind, each.namespace, each.name) for each in manifests]
    else:
        found, places = chosen_objects(kind or "", names, namespace, "delete", (STREAMS, RELAYS))
        wanted = [Named(found.name.capitalize(), *place) for place in places]
        if not wanted:
            raise typer.BadParameter(usage)
    if target.chosen() is not None:
        run(delete_objects(wanted, wait, timeout))
        return
    if any(each.kind == "Relay" for each in wanted):
        raise typer.BadParameter("the catalog keeps no Relays: write epochal --kube delete, or change spec.relays")
    run(_delete([(each.namespace, each.name) for each in wanted], wait, catalog, timeout))


async def _delete(wanted: Sequence[tuple[str, str]], wait: bool, url: str | None, timeout: float) -> None:
    """Delete all streams; one that does not exist is reported at the end, when the others are gone."""
    missing: StreamNotFound | None = None
    deleted: list[StreamInfo] = []
    async with open_catalog(url, timeout) as catalog:
        for namespace, name in wanted:
            try:
                stream = await catalog.get(namespace, name)
                await catalog.delete(namespace, name)
            except StreamNotFound as error:
                missing = error
                continue
            deleted.append(stream)
            note(_what_goes(stream))
            print(f"stream {namespace}/{name} deleted", flush=True)
    if wait:
        await _gone(deleted, timeout)
    if missing is not None:
        raise missing


def _what_goes(stream: StreamInfo) -> str:
    publishers = {segment.publisher.id for segment in stream.segments if segment.publisher is not None}
    counts = {
        "segment": len(stream.segments),
        "publisher": len(publishers),
        "open writer": len(stream.writers),
        "subscription": stream.subscriptions,
    }
    parts = [f"{number:,} {what}{'s' if number > 1 else ''}" for what, number in counts.items() if number]
    return f"{stream.qualified}: its history goes, and with it {', '.join(parts)}"


async def _gone(streams: Sequence[StreamInfo], timeout: float) -> None:
    """Wait until no publisher of the deleted streams answers any more; raises `TimedOut`."""
    left = {
        segment.publisher.id: segment.publisher.addresses.get("http", "")
        for stream in streams
        for segment in stream.segments
        if segment.publisher is not None
    }
    deadline = asyncio.get_running_loop().time() + timeout
    while left:
        answers = await asyncio.gather(*(probes.reach(address, "http", LOOK_AT_MOST) for address in left.values()))
        left = {name: left[name] for name, reason in zip(left, answers, strict=True) if reason is None}
        if left and asyncio.get_running_loop().time() >= deadline:
            raise TimedOut(f"the streams are deleted, but after {timeout:g} s publishers still run: {', '.join(left)}")
        await asyncio.sleep(LOOK_AGAIN if left else 0)


# ---- on a cluster ----


async def delete_objects(wanted: Sequence[Named], wait: bool, timeout: float) -> None:
    """Delete all objects; one that does not exist is reported at the end, when the others are deleted."""
    missing: EpochalError | None = None
    deleted: dict[Named, str] = {}
    for each in wanted:
        try:
            found = await target.declared_objects(each.kind).delete(each.namespace, each.name)
        except (StreamNotFound, NotThere) as error:
            missing = error
            continue
        deleted[each] = found["metadata"]["uid"]
        if each.kind == "Stream":
            note(
                f"{each.namespace}/{each.name}: its history goes, and with it its publishers, once the operator has"
                " ended them"
            )
        print(f"{each} deleted", flush=True)
    if wait:
        await _objects_gone(deleted, timeout)
    if missing is not None:
        raise missing


async def _objects_gone(left: dict[Named, str], timeout: float) -> None:
    """Wait until the objects are gone or replaced by new ones of the same name; raises `TimedOut`."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        for key, uid in list(left.items()):
            found = await target.declared_objects(key.kind).find(key.namespace, key.name)
            if found is None or found["metadata"]["uid"] != uid:
                del left[key]
        if not left:
            return
        if asyncio.get_running_loop().time() >= deadline:
            raise TimedOut(
                f"deleted, but not gone after {timeout:g} s: {', '.join(map(str, left))}; the operator ends a stream's"
                " publishers, is it running? see: kubectl describe stream, and epochal --kube doctor"
            )
        await asyncio.sleep(LOOK_FOR_OBJECTS)
