"""Applying many manifests, wherever to: each outcome is told, and a refusal of one keeps no other from its turn.

Apart from `apply`, which tells a catalog, and from `objects`, which tells a cluster.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from epochal.cli.failures import describe
from epochal.cli.io.terminal import note
from epochal.errors import CatalogUnavailable, ClusterUnavailable, EpochalError
from epochal.resources import NotInEffect, StreamManifest


class Applied(NamedTuple):
    """What became of one: `created`, `configured` or `unchanged`, and which of its fields have no effect yet."""

    outcome: str
    not_in_effect: Sequence[NotInEffect]


async def apply_each(
    manifests: Sequence[StreamManifest], apply_one: Callable[[StreamManifest], Awaitable[Applied]], *, dry_run: bool
) -> None:
    """Apply all; refusals are told, and the last one is raised at the end.

    Where nobody answers, that is raised at once.
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
            note(f"{failures} of {len(manifests)} streams failed; the others are as told above")
        raise failed
