"""Looks at streams that change under the eyes of who looks; the rest is tried on a real API server."""

from typing import Any

import pytest

from epochal.client.catalog import CatalogClient
from epochal.resources import StreamManifest
from epochal.resources.cluster.names import FINALIZER
from epochal_operator.api import Api
from epochal_operator.cache import Cache
from epochal_operator.declaring import Confirm, Declared, Declaring
from epochal_operator.reconciler import OutOfDate, Reconciler
from epochal_operator.reporting import Reporter
from epochal_operator.settings import Settings

STREAM: dict[str, Any] = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {
        "name": "flights",
        "namespace": "demo",
        "uid": "u1",
        "resourceVersion": "1",
        "generation": 1,
        "finalizers": [FINALIZER],
    },
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}


class Vanishing(Declaring):
    """While the catalog is asked, the object goes: its finalizer was taken off by hand."""

    def __init__(self, cache: Cache, catalog: CatalogClient) -> None:
        super().__init__(catalog, lambda: None)
        self._cache = cache

    async def declare(self, manifest: StreamManifest, known_uid: str, confirm: Confirm) -> Declared:
        self._cache.drop(STREAM)
        return Declared("", ())


async def test_a_stream_that_vanishes_meanwhile_is_looked_at_again():
    settings, api, cache = Settings(catalog="http://127.0.0.1:1", image="publisher"), Api(1.0), Cache()
    cache.put(STREAM)
    async with CatalogClient(settings.catalog) as catalog:
        reconciler = Reconciler(settings, api, cache, Vanishing(cache, catalog), Reporter(api, cache, 1.0))
        with pytest.raises(OutOfDate, match="demo/flights is gone"):
            await reconciler.reconcile(("demo", "flights"))
        assert await reconciler.reconcile(("demo", "flights")) is None
