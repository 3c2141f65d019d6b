"""`Stream` objects in a cluster: applied, read and deleted as kubectl does it.

These are not the catalog's streams, which the operator declares for them: a change that is made only at the catalog
would be undone, or have no publishers.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from epochal.errors import ClusterError, StreamNotFound
from epochal.kube.api import STREAM, Object
from epochal.kube.rights import GROUP
from epochal.kube.user_api import Conflict, NotThere, UserApi


class Streams:
    """The `Stream` objects of the cluster of `api`."""

    def __init__(self, api: UserApi) -> None:
        self._api = api

    async def all(self, namespace: str | None = None) -> list[Object]:
        """All objects, or those of a namespace."""
        try:
            return (await self._api.list(STREAM, namespace or ""))[0]
        except NotThere:
            raise self._no_resource() from None

    async def find(self, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        try:
            return await self._api.get(STREAM.kind, namespace, name)
        except NotThere:
            raise self._no_resource() from None

    async def apply(
        self,
        manifest: Mapping[str, Any],
        namespace: str,
        name: str,
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> Object:
        """Server-side apply of exactly the fields that are given; returns the object as it is then.

        Raises `ManifestError` for what the cluster finds wrong, `ClusterError` for fields that another manager has set
        unless `force` takes them over, and for a namespace that is not there.
        """
        options = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        item = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace, "name": name}}
        try:
            return await self._api.apply(item, force=force, options=options)
        except Conflict as error:
            raise ClusterError(
                f"stream {namespace}/{name} has fields that something else has set: {error}; "
                "apply with what set them, or take them over with --force-conflicts"
            ) from None
        except NotThere as error:
            if error.kind == "namespaces":
                raise ClusterError(
                    f"there is no namespace {namespace}; create it with: kubectl create namespace {namespace}"
                ) from None
            raise self._no_resource() from None

    async def delete(self, namespace: str, name: str) -> Object:
        """Delete the object; it is gone once the operator has ended the publishers. Raises `StreamNotFound`."""
        found = await self.find(namespace, name)
        if found is None:
            raise StreamNotFound(f"there is no Stream object {namespace}/{name} in the cluster")
        with suppress(NotThere):  # someone else did
            await self._api.delete({**found, "kind": STREAM.kind})
        return found

    def _no_resource(self) -> ClusterError:
        return ClusterError(
            f"the cluster of context {self._api.access.name} knows no streams.{GROUP}: is Epochal installed there? "
            "helm install epochal charts/epochal -n epochal --create-namespace"
        )
