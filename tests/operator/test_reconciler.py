"""Looks at streams that change under the eyes of who looks; the rest is tried on a real API server."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.resources.test_cluster_children import SETTINGS, stream

from epochal.catalog_api.answers import StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import Unavailable
from epochal.resources.cluster import Seen, children_of, status_of
from epochal.resources.cluster.rollout import Rollout
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal.resources.manifest import StreamManifest
from epochal_operator.actions import Actions, OutOfDate
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.catalog_sync import CatalogSync, Confirm, DeclaredStream, catalog_client
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.reporter import Reporter
from epochal_operator.settings import OperatorSettings

ROLLOUT = Rollout("", 3, 300.0)
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
        "annotations": {OPERATOR: "default/epochal-operator"},
    },
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "json"}},
}


class Vanishing(CatalogSync):
    """While the catalog is asked, the object goes: its finalizer was taken off by hand."""

    def __init__(self, cache: Cache, catalog: CatalogClient) -> None:
        super().__init__(catalog, lambda: None)
        self._cache = cache

    async def declare(self, manifest: StreamManifest, known_uid: str, confirm: Confirm) -> DeclaredStream:
        self._cache.drop(STREAM)
        return DeclaredStream("", ())


async def test_a_stream_that_vanishes_meanwhile_is_looked_at_again():
    settings, api, cache = OperatorSettings(catalog="http://127.0.0.1:1", image="publisher"), ThrottledApi(1.0), Cache()
    cache.put(STREAM)
    async with CatalogClient(settings.catalog) as catalog:
        reporter, claims = Reporter(api, cache, 1.0), Claims(settings.operator, cache)
        reconciler = Reconciler(
            settings, api, cache, Vanishing(cache, catalog), reporter, claims, Actions(api, cache, reporter), ROLLOUT
        )
        with pytest.raises(OutOfDate, match="demo/flights is gone"):
            await reconciler.reconcile(("demo", "flights"))
        assert await reconciler.reconcile(("demo", "flights")) is None


class Overtaken(ThrottledApi):
    """While it answers that there is nothing of a name, something is made, of which a watch says so first."""

    def __init__(self, cache: Cache, made: dict[str, Any]) -> None:
        super().__init__(1.0)
        self._cache, self._made = cache, made

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._cache.drop(STREAM)
        self._cache.put(self._made)
        return None


async def test_a_successor_that_is_seen_while_its_predecessor_is_asked_for_is_kept():
    """Else it was taken for one that is gone, and nobody looked after it until the operator began again."""
    cache = Cache()
    cache.put(STREAM)
    made = {**STREAM, "metadata": {**STREAM["metadata"], "uid": "u2", "resourceVersion": "3"}}
    api = Overtaken(cache, made)
    assert await Actions(api, cache, Reporter(api, cache, 1.0)).refresh(STREAM) is None
    assert cache.find(STREAM) == made
    assert cache.put({**made, "metadata": {**made["metadata"], "resourceVersion": "4"}})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://epochal-catalog.nowhere.svc:1"])
async def test_what_is_said_of_a_catalog_that_is_away_is_for_those_who_read_a_status(url: str) -> None:
    settings, cache = OperatorSettings(catalog=url, image="publisher"), Cache()
    noting = Noting(ThrottledApi(1.0), cache, 1.0)
    cache.put(STREAM)
    deleted = {**STREAM["metadata"], "resourceVersion": "2", "deletionTimestamp": datetime.now(UTC).isoformat()}
    async with catalog_client(settings.catalog) as catalog:
        sync, claims = CatalogSync(catalog, lambda: None), Claims(settings.operator, cache)
        actions = Actions(noting._api, cache, noting)
        reconciler = Reconciler(settings, noting._api, cache, sync, noting, claims, actions, ROLLOUT)
        for stream in (STREAM, {**STREAM, "metadata": deleted}):
            cache.put(stream)
            await reconciler.reconcile(("demo", "flights"))
            assert noting.seen is not None
            for condition in status_of({}, noting.seen)["conditions"]:
                said = condition["message"]
                assert not re.search(r"epochal up|EPOCHAL_|--catalog|SERVICE|in its cluster", said)
                assert "see that the catalog's pod runs" in said or "Unavailable" not in condition["reason"]


class Away(CatalogSync):
    """A catalog that is away."""

    async def find_declared(self, namespace: str, name: str, uid: str) -> StreamInfo | None:
        raise Unavailable("no catalog answers")


class Noting(Reporter):
    """Notes what is reported, in place of writing it."""

    seen: Seen | None = None

    async def report(self, stream: dict[str, Any], seen: Seen) -> float | None:
        self.seen = seen
        return None


async def test_a_wrong_manifest_while_the_catalog_is_away_leaves_what_is_reported_of_pods_true():
    settings, api, cache = OperatorSettings(catalog="http://127.0.0.1:1", image="publisher"), ThrottledApi(1.0), Cache()
    wrong = {**STREAM["spec"], "segments": 2, "publishers": {"advertise": "not a host {index}"}}
    status = {"segments": 2, "catalogUid": "c1", "notInEffect": ["spec.access"]}
    cache.put({**STREAM, "spec": wrong, "status": status})
    pods = [item for item in children_of(stream(2), SETTINGS) if item["kind"] == "Pod"]
    for pod, ready in zip(pods, ("True", "False"), strict=True):
        pod["metadata"] |= {"uid": pod["metadata"]["name"], "resourceVersion": "1"}
        pod["metadata"]["ownerReferences"][0]["uid"] = "u1"
        cache.put({**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
    noting, claims = Noting(api, cache, 1.0), Claims(settings.operator, cache)
    async with CatalogClient(settings.catalog) as catalog:
        reconciler = Reconciler(
            settings, api, cache, Away(catalog, lambda: None), noting, claims, Actions(api, cache, noting), ROLLOUT
        )
        await reconciler.reconcile(("demo", "flights"))
    assert noting.seen is not None
    told = status_of(status, noting.seen)
    assert (told["segments"], told["readySegments"], told["catalogUid"]) == (2, 1, "c1")
    assert told["notInEffect"] == ["spec.access"]
    assert [item["reason"] for item in told["conditions"]] == ["PublishersNotReady", "Invalid", "Invalid"]
