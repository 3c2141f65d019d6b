"""Applying and deleting `Stream` objects of a cluster, for `apply` and `delete` with `--kube`.

Separate from those commands because it talks to the API server of Kubernetes and not to the catalog: the operator
declares the stream there, and runs its publishers.
"""

import asyncio
from collections.abc import Sequence

from epochal.cli import target
from epochal.cli.commands.apply import Applied, apply_each
from epochal.cli.io.terminal import note
from epochal.errors import StreamNotFound, TimedOut
from epochal.kube.api import Object
from epochal.kube.streams import Streams
from epochal.resources import OBJECT_UID, StreamManifest

LOOK_AGAIN = 0.5
"""Seconds between looks at what is still there."""


async def apply_objects(manifests: Sequence[StreamManifest], dry_run: bool, force: bool) -> None:
    """Apply all; those that the cluster refuses are reported, and the last one's error is raised at the end."""
    streams = target.cluster().streams
    note(f"applying to the cluster of context {target.cluster().access.name}, as kubectl apply --server-side does")

    async def one(manifest: StreamManifest) -> Applied:
        outcome, uid = await _apply_one(streams, manifest, dry_run, force)
        return Applied(outcome, _of_object(manifest, uid).not_in_effect())

    await apply_each(manifests, one, dry_run=dry_run)


async def _apply_one(streams: Streams, manifest: StreamManifest, dry_run: bool, force: bool) -> tuple[str, str]:
    """What became of it, and the object's uid."""
    before = await streams.find(manifest.namespace, manifest.name)
    # Only what was written, no defaults: a caller of apply becomes the owner of every field that it sends.
    document = manifest.model_dump(mode="json", by_alias=True, exclude_unset=True)
    after = await streams.apply(document, manifest.namespace, manifest.name, dry_run=dry_run, force=force)
    uid = str(after["metadata"].get("uid", ""))
    if before is None:
        return "created", uid
    return "unchanged" if _applied(before) == _applied(after) else "configured", uid


def _of_object(manifest: StreamManifest, uid: str) -> StreamManifest:
    """As the operator declares it: the annotation says that it is an object of a cluster, and so what is in effect."""
    metadata = manifest.metadata.model_copy(update={"annotations": {**manifest.metadata.annotations, OBJECT_UID: uid}})
    return manifest.model_copy(update={"metadata": metadata})


def _applied(item: Object) -> list[object]:
    """What an apply can change."""
    return [item.get("spec"), *(item["metadata"].get(part) or {} for part in ("labels", "annotations"))]


async def delete_objects(wanted: Sequence[tuple[str, str]], wait: bool, timeout: float) -> None:
    """Delete all; one that is not there is reported at the end, when the others are deleted."""
    streams = target.cluster().streams
    missing: StreamNotFound | None = None
    deleted: dict[str, tuple[str, str, str]] = {}
    for namespace, name in wanted:
        try:
            found = await streams.delete(namespace, name)
        except StreamNotFound as error:
            missing = error
            continue
        deleted[f"{namespace}/{name}"] = (namespace, name, found["metadata"]["uid"])
        note(f"{namespace}/{name}: its history goes, and with it its publishers, once the operator has ended them")
        print(f"stream {namespace}/{name} deleted", flush=True)
    if wait:
        await _gone(streams, deleted, timeout)
    if missing is not None:
        raise missing


async def _gone(streams: Streams, left: dict[str, tuple[str, str, str]], timeout: float) -> None:
    """Wait until the objects are gone, or others of the same name are there; raises `TimedOut`."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        for key, (namespace, name, uid) in list(left.items()):
            found = await streams.find(namespace, name)
            if found is None or found["metadata"]["uid"] != uid:
                del left[key]
        if not left:
            return
        if asyncio.get_running_loop().time() >= deadline:
            raise TimedOut(
                f"deleted, but not gone after {timeout:g} s: {', '.join(left)}; the operator ends their publishers, "
                "is it running? see: kubectl describe stream, and epochal --kube doctor"
            )
        await asyncio.sleep(LOOK_AGAIN)
