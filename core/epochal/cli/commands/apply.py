"""`epochal apply`: declare streams, or change them.

The outcome of each manifest is printed. If one is refused, the others are applied all the same.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NamedTuple

import typer

from epochal.cli import target
from epochal.cli.failures import describe
from epochal.cli.io.manifests import read_manifests
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, Catalog, Manifests, Namespace, Timeout, open_catalog, run
from epochal.client.catalog.catalog import CatalogClient
from epochal.client.catalog.types import StreamInfo
from epochal.errors import CatalogUnavailable, ClusterUnavailable, EpochalError, ManifestError, StreamNotFound
from epochal.kube.addresses import in_cluster
from epochal.resources import NotInEffect, StreamManifest, immutable_changes

EPILOG = """\b
Examples:
  epochal apply -f examples/flights.yaml
  epochal apply -f examples -f more.yaml --dry-run   # a directory, a file
  cat streams.yaml | epochal apply -n demo -f -

Prints "created", "configured" or "unchanged" for each stream. All manifests are checked before anything is applied; one
that the catalog refuses does not keep the others from being applied, and is reported at the end. Fields whose function
is planned are accepted, and named on standard error. What cannot change while a stream lives: spec.time.shape,
spec.payload.encoding, spec.segments.

With `epochal --kube apply` the Stream objects of the cluster are applied, as kubectl apply --server-side does, and
the operator declares them at the catalog. Fields that something else has set (kubectl apply, say) are left to it, as
an error, unless --force-conflicts takes them over. Without --kube only the catalog gets them, also that of a
cluster, where nothing starts publishers for a stream without a Stream object."""


def apply(
    filename: Manifests = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force-conflicts", help="With --kube: take over fields that something else has set.")
    ] = False,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Declare the streams of manifests, or change them."""
    if not filename:
        raise typer.BadParameter("name a file of manifests: epochal apply -f FILE (or -f - for standard input)")
    manifests = read_manifests(filename, namespace)
    if target.chosen() is not None:
        from epochal.cli.commands.cluster_apply import apply_objects

        run(apply_objects(manifests, dry_run, force))
    else:
        run(_apply(manifests, dry_run, catalog, timeout))


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
    """What applying would do; raises `ManifestError` for a change that the catalog would refuse."""
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
    """What became of one: `created`, `configured` or `unchanged`, and which of its fields have no effect yet."""

    outcome: str
    not_in_effect: Sequence[NotInEffect]


async def apply_each(
    manifests: Sequence[StreamManifest], apply_one: Callable[[StreamManifest], Awaitable[Applied]], *, dry_run: bool
) -> None:
    """Apply all; refusals are printed, and the last one is raised at the end.

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
        print(f"stream {manifest.qualified} {applied.outcome}{' (dry run)' if dry_run else ''}", flush=True)
        for field in applied.not_in_effect:
            note(f"not in effect yet: {manifest.qualified} {field.path}: {field.note}")
    if failed is not None:
        if len(manifests) > 1:
            note(f"{failures} of {len(manifests)} streams failed; the others are as printed above")
        raise failed
