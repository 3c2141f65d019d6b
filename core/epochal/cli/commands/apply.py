"""`epochal apply`: declare streams, and on a cluster relays, or change them.

The outcome of each manifest is printed. If one is refused, the others are applied all the same.
With `--kube`, `Stream` and `Relay` objects are applied and deleted at the API server of Kubernetes and not at the
catalog: the operator declares the stream there, and runs its publishers and relays.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NamedTuple, TypeVar

import typer

from epochal.catalog_api.answers import StreamInfo
from epochal.cli import target
from epochal.cli.connections import open_catalog
from epochal.cli.failures import describe
from epochal.cli.io.terminal import note
from epochal.cli.manifests import read_manifests
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, Manifests, NamespaceOption, Timeout
from epochal.cli.target import run
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import (
    CatalogUnavailable,
    ClusterUnavailable,
    EpochalError,
    ManifestError,
    Problem,
    StreamNotFound,
)
from epochal.kube.api import Object
from epochal.kube.cluster import in_cluster
from epochal.kube.user_api import DeclaredObjects
from epochal.resources.documents import Manifest
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import OBJECT_UID, NotInEffect, StreamManifest, immutable_changes
from epochal.resources.relay import RelayManifest

EPILOG = """\b
Examples:
  epochal apply -f examples/flights.yaml
  epochal apply -f examples -f more.yaml --dry-run   # a directory, a file
  cat streams.yaml | epochal apply -n demo -f -

Prints "created", "configured" or "unchanged" for each. All manifests are checked before anything is applied; one that
the catalog refuses does not keep the others from being applied, and is reported at the end. Fields whose function is
planned are accepted, and named on standard error. What cannot change while a stream lives: spec.time.shape,
spec.payload.encoding, spec.segments.

With `epochal --kube apply` the Stream and Relay objects of the cluster are applied, as kubectl apply --server-side
does, and the operator declares streams at the catalog. Fields that something else has set (kubectl apply, say) are left
to it, as an error, unless --force-conflicts takes them over. Without --kube only the catalog gets them, also that of a
cluster, where nothing starts publishers for a stream without a Stream object. The catalog keeps no Relays: without
--kube, say how many there are in the stream's spec.relays."""


def apply(
    filename: Manifests = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force-conflicts", help="With --kube: take over fields that something else has set.")
    ] = False,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Declare the streams of manifests, or change them; on a cluster the relays too."""
    if not filename:
        raise typer.BadParameter("name a file of manifests: epochal apply -f FILE (or -f - for standard input)")
    manifests = read_manifests(filename, namespace)
    check_feasible(*manifests)
    if target.chosen() is not None:
        run(apply_objects(manifests, dry_run, force))
    else:
        run(_apply(only_streams(manifests), dry_run, catalog, timeout))


def only_streams(manifests: Sequence[Manifest]) -> list[StreamManifest]:
    """The manifests, all of streams. Raises `ManifestError` for relays, which the catalog does not keep."""
    problems = [
        Problem(
            "kind",
            f"Relay {manifest.qualified} can be declared on a cluster only",
            f"there use epochal --kube; in local mode set spec.relays in the manifest of stream {manifest.spec.stream}",
        )
        for manifest in manifests
        if isinstance(manifest, RelayManifest)
    ]
    if problems:
        raise ManifestError("the catalog keeps streams only, and nothing was changed", problems)
    return [manifest for manifest in manifests if isinstance(manifest, StreamManifest)]


async def _apply(manifests: list[StreamManifest], dry_run: bool, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        if in_cluster(catalog.url) is not None:
            note("declared at the cluster's catalog alone: no publishers start. epochal --kube apply makes objects")

        async def one(manifest: StreamManifest) -> Applied:
            outcome = await (_compare if dry_run else _apply_one)(catalog, manifest)
            return Applied(outcome, manifest.not_in_effect())

        await apply_each(manifests, one, dry_run=dry_run)


async def _apply_one(catalog: CatalogClient, manifest: StreamManifest) -> str:
    before = await _find(catalog, manifest)
    after, created = await catalog.apply(manifest.to_document(), manifest.namespace, manifest.name)
    if created:
        return "created"
    if before is not None and (before.uid, before.generation) == (after.uid, after.generation):
        return "unchanged"
    note(f"{manifest.qualified}: its publishers take the changed settings when they next start")
    return "configured"


async def _compare(catalog: CatalogClient, manifest: StreamManifest) -> str:
    """What applying the manifest would do; raises `ManifestError` for a change that the catalog would refuse."""
    before = await _find(catalog, manifest)
    if before is None:
        return "created"
    if before.manifest == manifest.to_document():
        return "unchanged"
    if problems := immutable_changes(before.declared(), manifest):
        raise ManifestError(f"stream {manifest.qualified} cannot be changed so", problems)
    return "configured"


async def _find(catalog: CatalogClient, manifest: StreamManifest) -> StreamInfo | None:
    try:
        return await catalog.get(manifest.namespace, manifest.name)
    except StreamNotFound:
        return None


class Applied(NamedTuple):
    """The outcome for one manifest: `created`, `configured` or `unchanged`, and its fields that have no effect yet."""

    outcome: str
    not_in_effect: Sequence[NotInEffect]


M = TypeVar("M", bound=Manifest)


async def apply_each(manifests: Sequence[M], apply_one: Callable[[M], Awaitable[Applied]], *, dry_run: bool) -> None:
    """Apply all manifests; refusals are printed, and the last one is raised at the end.

    An unreachable catalog or cluster is raised at once.
    """
    failed: EpochalError | None = None
    failures = 0
    for manifest in manifests:
        try:
            applied = await apply_one(manifest)
        except (CatalogUnavailable, ClusterUnavailable):
            raise
        except EpochalError as error:
            if failed is not None:
                note(describe(failed))
            failed, failures = error, failures + 1
            continue
        kind = manifest.kind.lower()
        print(f"{kind} {manifest.qualified} {applied.outcome}{' (dry run)' if dry_run else ''}", flush=True)
        if applied.outcome == "created" and _forgets(manifest):
            note(f"{manifest.qualified} has no history.storage: its records are gone when their publisher ends")
        for field in applied.not_in_effect:
            note(f"not in effect yet: {manifest.qualified} {field.path}: {field.note}")
    if failed is not None:
        if len(manifests) > 1:
            note(f"{failures} of {len(manifests)} manifests failed; the others are as printed above")
        raise failed


def _forgets(manifest: Manifest) -> bool:
    return isinstance(manifest, StreamManifest) and manifest.spec.history.storage is None


async def apply_objects(manifests: Sequence[Manifest], dry_run: bool, force: bool) -> None:
    """Apply all manifests as objects; refusals are printed, and the last one is raised at the end."""
    note(f"applying to the cluster of context {target.cluster().access.name}, as kubectl apply --server-side does")

    async def one(manifest: Manifest) -> Applied:
        outcome, uid = await _apply_object(target.declared_objects(manifest.kind), manifest, dry_run, force)
        if isinstance(manifest, RelayManifest):
            return Applied(outcome, ())
        return Applied(outcome, _of_object(manifest, uid).not_in_effect())

    await apply_each(manifests, one, dry_run=dry_run)


async def _apply_object(objects: DeclaredObjects, manifest: Manifest, dry_run: bool, force: bool) -> tuple[str, str]:
    """The outcome for one manifest, and the object's uid."""
    before = await objects.find(manifest.namespace, manifest.name)
    # Only fields that the manifest has, no defaults: who applies a field becomes its owner.
    document = manifest.model_dump(mode="json", by_alias=True, exclude_unset=True)
    after = await objects.apply(document, manifest.namespace, manifest.name, dry_run=dry_run, force=force)
    uid = str(after["metadata"].get("uid", ""))
    if before is None:
        return "created", uid
    return "unchanged" if _applied(before) == _applied(after) else "configured", uid


def _of_object(manifest: StreamManifest, uid: str) -> StreamManifest:
    """The manifest as the operator declares it: its annotation says that it belongs to an object of a cluster."""
    metadata = manifest.metadata.model_copy(update={"annotations": {**manifest.metadata.annotations, OBJECT_UID: uid}})
    return manifest.model_copy(update={"metadata": metadata})


def _applied(item: Object) -> list[object]:
    """The parts of an object that an apply can change."""
    return [item.get("spec"), *(item["metadata"].get(part) or {} for part in ("labels", "annotations"))]
