"""Keeps the catalog's streams in step with the Stream objects: declares them, and deletes them with their objects.

An annotation of the catalog's stream has the uid of its object: names are used again, uids are not (S26). The catalog
may be unreachable while the cluster is not; then a reconcile goes on with what the status last said.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError, ManifestError, ProtocolError, StreamNotFound, Unavailable
from epochal.resources.cluster.status import frontier_text
from epochal.resources.cluster.stream import OPERATOR
from epochal.resources.manifest import OBJECT_UID, StreamManifest
from epochal.resources.spec import Object
from epochal.verdicts import full_disks, lost_epochs, lost_writers, waiting_segments

logger = logging.getLogger("epochal.operator")

RelayName = tuple[str, str, str]
"""Namespace, stream, and the name that the relays share."""
Confirm = Callable[[], Awaitable[None]]
_NOT_OURS = ("kubectl.kubernetes.io/", OPERATOR)
"""Prefixes of annotations that do not belong to the stream; kubectl's contains the whole manifest again."""


class Concerns(NamedTuple):
    """Problems that the publishers of a stream report, in the order in which the status shows them."""

    lost_writers: tuple[str, ...] = ()
    """Ids of lost writers for which epochs wait (E46 hold)."""
    lost_epochs: tuple[str, ...] = ()
    """The open epochs that were lost with a publisher's memory, as one text for each segment (E11 horizon)."""
    waiting_segments: tuple[str, ...] = ()
    """Segments whose appends have waited for the catalog for too long (E11 horizon)."""
    full_disks: tuple[str, ...] = ()
    """Segments whose logs cannot be written because the disk is full, each with the reason (E10 durability)."""


NO_CONCERNS = Concerns()


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream as the catalog has it, or what the status says of it while the catalog is unreachable."""

    uid: str
    segments: tuple[str, ...]
    frontier: str | None = None
    trouble: str = ""
    """Why the catalog did not answer; empty if it did."""
    concerns: Concerns = NO_CONCERNS


def manifest_of(stream: Object) -> StreamManifest:
    """The manifest in a Stream object, with the object's uid as an annotation. Raises `ManifestError`."""
    metadata = stream["metadata"]
    annotations = {
        name: value for name, value in metadata.get("annotations", {}).items() if not name.startswith(_NOT_OURS)
    }
    document = {
        "apiVersion": stream["apiVersion"],
        "kind": stream["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": metadata.get("labels", {}),
            "annotations": {**annotations, OBJECT_UID: metadata["uid"]},
        },
        "spec": stream.get("spec"),
    }
    return StreamManifest.from_document(document)


def object_uid(found: StreamInfo) -> str:
    """The uid of the object that a stream at the catalog belongs to; empty if it was not declared by an operator."""
    annotations = found.manifest.get("metadata", {}).get("annotations", {})
    return str(annotations.get(OBJECT_UID, ""))


class CatalogSync:
    """The operator's calls to the catalog. `may_write` is called before each write, and may raise to prevent it."""

    def __init__(self, catalog: CatalogClient, may_write: Callable[[], None]) -> None:
        self._catalog = catalog
        self._may_write = may_write

    async def declare(self, manifest: StreamManifest, known_uid: str, confirm: Confirm) -> DeclaredStream:
        """Declare the stream at the catalog, after deleting an older stream of the same name.

        `known_uid`: the uid from the status, for the case that the catalog is unreachable. `confirm` is awaited before
        anything is written, and raises if the object has changed: an outdated object must not delete the stream of a
        newer one. Raises `ManifestError` if the catalog refuses the manifest, and what `confirm` raises.
        """
        try:
            found = await self._declared(manifest, confirm)
        except (Unavailable, ProtocolError) as error:
            return DeclaredStream(known_uid, tuple(map(str, range(manifest.spec.segments))), trouble=str(error))
        return declared_of(found)

    async def _declared(self, manifest: StreamManifest, confirm: Confirm) -> StreamInfo:
        namespace, name, document = manifest.namespace, manifest.name, manifest.to_document()
        found = await self._find(namespace, name)
        if found is not None and found.manifest == document:
            return found
        await confirm()
        if found is not None and object_uid(found) not in ("", manifest.object_uid):
            logger.info("%s/%s: deleting the older stream of this name, %s", namespace, name, found.uid)
            await self._delete(found)
        self._may_write()
        found, _ = await self._catalog.apply(document, namespace, name)
        return found

    async def withdraw(self, namespace: str, name: str, uid: str) -> None:
        """Delete the stream of the object with this uid, if it exists. Raises `Unavailable`, `ProtocolError`."""
        if found := await self.find_declared(namespace, name, uid):
            await self._delete(found)

    async def find_declared(self, namespace: str, name: str, uid: str) -> StreamInfo | None:
        """The stream of the object with this uid, as last declared. Raises `Unavailable`, `ProtocolError`."""
        found = await self._find(namespace, name)
        return found if found is not None and object_uid(found) == uid else None

    async def _find(self, namespace: str, name: str) -> StreamInfo | None:
        try:
            return await self._catalog.get(namespace, name)
        except StreamNotFound:
            return None

    async def _delete(self, found: StreamInfo) -> None:
        self._may_write()
        try:
            await self._catalog.delete(found.namespace, found.name, uid=found.uid)
        except EpochalError as error:
            if not isinstance(error, StreamNotFound) and error.code != "other_stream":
                raise

    async def list(self) -> tuple[StreamInfo, ...]:
        """All streams of the catalog. Raises what the catalog client raises."""
        return await self._catalog.list()

    async def relay_loads(self) -> dict[RelayName, int | None]:
        """The number of subscribers by namespace, stream and name of the relays. Raises what the catalog client raises.

        None for a name whose relays have not all reported since the catalog restarted.
        """
        loads: dict[RelayName, int | None] = {}
        for relay in await self._catalog.relays():
            namespace, _, stream = relay.stream.partition("/")
            name, load = (namespace, stream, relay.name), relay.load if relay.verified else None
            so_far = loads.get(name, 0)
            loads[name] = None if load is None or so_far is None else so_far + load
        return loads

    async def collect(self, found: StreamInfo) -> None:
        """Delete a stream whose object was deleted while the catalog was unreachable."""
        logger.info("%s: its object is gone; deleting the stream %s", found.qualified, found.uid)
        await self._delete(found)


def declared_of(found: StreamInfo) -> DeclaredStream:
    """The catalog's answer as a `DeclaredStream`, with the open segments only."""
    segments = tuple(segment.id for segment in found.segments if segment.state == "open")
    return DeclaredStream(found.uid, segments, frontier_of(found), concerns=concerns_of(found))


def catalog_client(url: str) -> CatalogClient:
    """A client that tries each call once. The status of streams shows its errors, with advice for those who read it."""
    advice = "see that the catalog's pod runs, and that the operator reaches it"
    return CatalogClient(url, patience=0.0, timeout=5.0, advice=advice)


def frontier_of(found: StreamInfo) -> str | None:
    """The stream's lower frontier as text for the status; None if unknown."""
    return frontier_text(segment.lower for segment in found.segments)


def concerns_of(found: StreamInfo) -> Concerns:
    """The problems among what the publishers of a stream last reported."""
    full = tuple(each.cause for each in full_disks(found))
    return Concerns(tuple(lost_writers(found)), tuple(lost_epochs(found)), tuple(waiting_segments(found)), full)


def refused(error: ManifestError) -> str:
    """The problems of a manifest on one line."""
    problems: Any = error.problems
    return "; ".join(map(str, problems)) or str(error).split("\n", 1)[0]
