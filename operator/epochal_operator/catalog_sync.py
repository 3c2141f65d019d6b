"""Streams at the catalog: declared for their Kubernetes objects, and taken back with them.

Which object a stream at the catalog belongs to is in an annotation, the uid of the object: names are used again, uids
are not (S26). The catalog may be away while the cluster is not.
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
"""Annotations that begin so say nothing about the stream: kubectl's holds it a second time."""


class Concerns(NamedTuple):
    """What the publishers of a stream report that people should know, in the order in which it is shown."""

    lost_writers: tuple[str, ...] = ()
    """Ids of the writers that were lost and are waited for (E46)."""
    lost_epochs: tuple[str, ...] = ()
    """Which epochs are aborted with a lost memory, and not past: in words, by segment (E11)."""
    waiting_segments: tuple[str, ...] = ()
    """Segments of which appends have waited for the catalog for too long (E11)."""
    full_disks: tuple[str, ...] = ()
    """Segments whose logs cannot be written, for the disk is full: in words (E10)."""


NO_CONCERNS = Concerns()


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream as the catalog has it, or what is known of it while the catalog is away."""

    uid: str
    segments: tuple[str, ...]
    frontier: str | None = None
    trouble: str = ""
    """Why the catalog did not answer."""
    concerns: Concerns = NO_CONCERNS


def manifest_of(stream: Object) -> StreamManifest:
    """The manifest in an object, marked as this object's. Raises `ManifestError`."""
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
    """Of which object a stream at the catalog is; empty for one that was declared by hand."""
    annotations = found.manifest.get("metadata", {}).get("annotations", {})
    return str(annotations.get(OBJECT_UID, ""))


class CatalogSync:
    """The calls to the catalog for streams. `may_write` is called before each write; what it raises is raised."""

    def __init__(self, catalog: CatalogClient, may_write: Callable[[], None]) -> None:
        self._catalog = catalog
        self._may_write = may_write

    async def declare(self, manifest: StreamManifest, known_uid: str, confirm: Confirm) -> DeclaredStream:
        """Have the stream declared so; an older one of its name goes first.

        `known_uid`: its uid as the catalog last reported it. `confirm` is awaited before anything is written: an old
        look at an object must not delete the stream of a newer one. Raises `ManifestError` for what the catalog
        refuses, and what `confirm` raises.
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
        """Delete the stream of the object with this uid, if it is there. Raises `Unavailable`, `ProtocolError`."""
        if found := await self.find_declared(namespace, name, uid):
            await self._delete(found)

    async def find_declared(self, namespace: str, name: str, uid: str) -> StreamInfo | None:
        """The stream of the object with this uid, as it was last declared. Raises `Unavailable`, `ProtocolError`."""
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
        """All streams there. Raises what the catalog client raises."""
        return await self._catalog.list()

    async def relay_loads(self) -> dict[RelayName, int | None]:
        """The subscribers of all relays by namespace, stream and name. Raises what the catalog client raises.

        None where the catalog has begun again, and not all relays of the name have reported since.
        """
        loads: dict[RelayName, int | None] = {}
        for relay in await self._catalog.relays():
            namespace, _, stream = relay.stream.partition("/")
            name, load = (namespace, stream, relay.name), relay.load if relay.verified else None
            so_far = loads.get(name, 0)
            loads[name] = None if load is None or so_far is None else so_far + load
        return loads

    async def collect(self, found: StreamInfo) -> None:
        """Delete a stream whose object is gone: it was deleted while the catalog was away."""
        logger.info("%s: its object is gone; deleting the stream %s", found.qualified, found.uid)
        await self._delete(found)


def declared_of(found: StreamInfo) -> DeclaredStream:
    """What is known of a stream, from the catalog's answer."""
    segments = tuple(segment.id for segment in found.segments if segment.state == "open")
    return DeclaredStream(found.uid, segments, frontier_of(found), concerns=concerns_of(found))


def catalog_client(url: str) -> CatalogClient:
    """A client that tries once. Its errors end up in the status of streams: the advice is for those who read that."""
    advice = "see that the catalog's pod runs, and that the operator reaches it"
    return CatalogClient(url, patience=0.0, timeout=5.0, advice=advice)


def frontier_of(found: StreamInfo) -> str | None:
    """The stream's lower frontier as it is shown."""
    return frontier_text(segment.lower for segment in found.segments)


def concerns_of(found: StreamInfo) -> Concerns:
    """What the publishers of a stream reported last, as far as people should know it."""
    full = tuple(each.cause for each in full_disks(found))
    return Concerns(tuple(lost_writers(found)), tuple(lost_epochs(found)), tuple(waiting_segments(found)), full)


def refused(error: ManifestError) -> str:
    """What is wrong with a manifest, on one line."""
    problems: Any = error.problems
    return "; ".join(map(str, problems)) or str(error).split("\n", 1)[0]
