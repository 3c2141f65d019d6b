"""`epochal apply` and `epochal delete`: declare streams, and take them back.

Apart from showing them (`show`) because these two change something.
"""

from typing import Annotated

import typer

from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    Catalog,
    Manifest,
    Namespace,
    Timeout,
    note,
    open_catalog,
    read_manifest,
    run,
)
from epochal.client.catalog import CatalogClient
from epochal.errors import StreamNotFound
from epochal.resources import DEFAULT_NAMESPACE, StreamManifest, load_manifests, parse_stream_name

APPLY_EPILOG = """\b
Examples:
  epochal apply -f examples/flights/stream.yaml
  cat streams.yaml | epochal apply -n demo -f -

The whole file is checked before anything is applied. Fields whose function is planned are accepted, and told on
standard error."""

DELETE_EPILOG = """\b
Examples:
  epochal delete stream demo/flights
  epochal delete -f examples/flights/stream.yaml

Deleting a stream ends its publishers and loses its history. A stream of the same name may be declared again; it is
another one."""


def apply(
    filename: Manifest = None,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Declare the streams of a manifest file, or change them."""
    if filename is None:
        raise typer.BadParameter("name a file of manifests: epochal apply -f FILE (or -f - for standard input)")
    manifests = load_manifests(read_manifest(filename), namespace=namespace)
    run(_apply(manifests, catalog, timeout))


async def _apply(manifests: list[StreamManifest], url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        for manifest in manifests:
            print(f"stream {manifest.qualified} {await _apply_one(catalog, manifest)}", flush=True)
            for field in manifest.not_in_effect():
                note(f"not in effect yet: {manifest.qualified} {field.path}: {field.note}")


async def _apply_one(catalog: CatalogClient, manifest: StreamManifest) -> str:
    try:
        before = await catalog.get(manifest.namespace, manifest.name)
    except StreamNotFound:
        before = None
    after, created = await catalog.apply(manifest.to_document(), manifest.namespace, manifest.name)
    if created:
        return "created"
    if before is not None and (before.uid, before.generation) == (after.uid, after.generation):
        return "unchanged"
    note(f"{manifest.qualified}: its publishers take the changed settings when they next start")
    return "configured"


def delete(
    kind: Annotated[str | None, typer.Argument(metavar="[stream", help="What to delete: stream.")] = None,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...]", help="NAME or NS/NAME.")] = None,
    filename: Manifest = None,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete streams, by name or by the manifests that declare them."""
    if (filename is None) == (kind is None) or (kind is not None and (kind not in ("stream", "streams") or not names)):
        raise typer.BadParameter("write `epochal delete stream NAME` or `epochal delete -f FILE`")
    if filename is not None:
        manifests = load_manifests(read_manifest(filename), namespace=namespace)
        wanted = [(manifest.namespace, manifest.name) for manifest in manifests]
    else:
        wanted = [parse_stream_name(name, namespace or DEFAULT_NAMESPACE) for name in names or ()]
    run(_delete(wanted, catalog, timeout))


async def _delete(wanted: list[tuple[str, str]], url: str | None, timeout: float) -> None:
    """Delete all; one that is not there is told at the end, when the others are gone."""
    missing: StreamNotFound | None = None
    async with open_catalog(url, timeout) as catalog:
        for namespace, name in wanted:
            try:
                await catalog.delete(namespace, name)
                print(f"stream {namespace}/{name} deleted", flush=True)
            except StreamNotFound as error:
                missing = error
    if missing is not None:
        raise missing
