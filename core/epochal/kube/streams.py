"""`Stream` objects in a cluster: applied, read and deleted as kubectl does it.

Apart from the catalog's streams, which the operator declares for these: who changed those behind its back would be
undone, or have no publishers.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from epochal.errors import ClusterError, StreamNotFound
from epochal.kube.api import Api, Conflict, NotThere, Object
from epochal.kube.rights import GROUP, Right

VERSION = "v1alpha1"
MANAGER = "epochal"
"""Who has set a field, as Kubernetes keeps account of it."""


class Streams:
    """The `Stream` objects behind `api`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def all(self, namespace: str | None = None) -> list[Object]:
        """All objects, or those of a namespace."""
        path = f"/apis/{GROUP}/{VERSION}" + ("" if namespace is None else f"/namespaces/{quote(namespace, safe='')}")
        try:
            return await self._api.items(f"{path}/streams", Right("list", "streams", namespace, GROUP))
        except NotThere:
            raise self._no_resource() from None

    async def find(self, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        try:
            return await self._api.get(_path(namespace, name), Right("get", "streams", namespace, GROUP))
        except NotThere as error:
            if error.kind == "streams":
                return None
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
        params = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        right = Right("patch", "streams", namespace, GROUP)
        try:
            return await self._api.call(
                "PATCH",
                _path(namespace, name),
                right,
                params=params,
                body=dict(manifest),
                content_type="application/apply-patch+yaml",  # JSON is YAML
            )
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
        with suppress(NotThere):  # somebody else did
            await self._api.call("DELETE", _path(namespace, name), Right("delete", "streams", namespace, GROUP))
        return found

    def _no_resource(self) -> ClusterError:
        return ClusterError(
            f"the cluster of context {self._api.access.name} knows no streams.{GROUP}: is Epochal installed there? "
            "helm install epochal charts/epochal -n epochal --create-namespace"
        )


def _path(namespace: str, name: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quote(namespace, safe='')}/streams/{quote(name, safe='')}"
