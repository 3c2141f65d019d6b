"""What the operator must not write: for a manifest that has become wrong, and for a stream that is another by now."""

import copy
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.test_reconciler import STREAM, Noting
from tests.operator.test_relays import Held
from tests.resources.test_cluster_children import SETTINGS

from epochal.catalog_api.answers import SegmentInfo, StreamInfo
from epochal.client.catalog.catalog import CatalogClient
from epochal.resources.cluster import ClusterStream, children_of
from epochal.resources.cluster.children import release_of
from epochal.resources.cluster.rollout import Rollout
from epochal.resources.manifest import StreamManifest
from epochal_operator.actions import Actions, OutOfDate
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache
from epochal_operator.catalog_sync import CatalogSync, Confirm, DeclaredStream, manifest_of
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.settings import OperatorSettings

Object = dict[str, Any]
PLACE = ("demo", "flights")
OWN = OperatorSettings(catalog=SETTINGS.catalog, image="registry.example/publisher:2")


class Catalog(CatalogSync):
    """It has the stream as it was last declared well, and takes whatever is declared now."""

    def __init__(self) -> None:
        super().__init__(cast(CatalogClient, None), lambda: None)

    async def find_declared(self, namespace: str, name: str, uid: str) -> StreamInfo:
        document = manifest_of(STREAM).to_document()
        segment = SegmentInfo("0", 0, 2**64, "open", 1, (5,))
        return StreamInfo(namespace, name, "c1", 1, "Ready", document, segments=(segment,))

    async def declare(self, manifest: StreamManifest, known_uid: str, confirm: Confirm) -> DeclaredStream:
        return DeclaredStream("c1", ("0",))


class World(Held):
    """A stream that an operator with an older image has made, and one with a newer image that looks at it."""

    def __init__(self, stream: Object) -> None:
        super().__init__()
        self.written: list[str] = []
        self.cache = Cache()
        self.there.last = 10
        self.there.items["Stream", "flights"] = copy.deepcopy(stream)
        drawn = children_of(ClusterStream(manifest_of(STREAM), "u1", "c1", ("0",)), replace(SETTINGS, image="old:1"))
        for item in drawn:
            self.there.put(item)
        self.there.ready(self.there.items["Pod", "flights-0"])
        for item in self.there.items.values():
            self.cache.put(copy.deepcopy(item))
        api = cast(ThrottledApi, self)
        noting, claims = Noting(api, self.cache, 0.0), Claims(OWN.operator, self.cache)
        self.reconciler = Reconciler(
            *(OWN, api, self.cache, Catalog(), noting, claims, Actions(api, self.cache, noting)),
            rollout=Rollout(release_of(OWN.cluster), 3, 300.0),
        )

    async def create(self, item: Object) -> Object:
        if item["kind"] != "Event":
            self.written.append(f"create {item['kind']}")
        return {**item, "metadata": {**item["metadata"], "uid": "new", "resourceVersion": self.there.number()}}

    async def apply(self, item: Object, *, uid: str | None = None) -> Object:
        self.written.append(f"apply {item['kind']}")
        return await super().apply(item, uid=uid)

    async def delete(self, item: Object, _preconditions: Any = None) -> None:
        self.written.append(f"delete {item['kind']}")
        await super().delete(item)


@pytest.mark.rule("E11")
async def test_a_stream_whose_manifest_has_become_wrong_is_not_rolled() -> None:
    """Without storage each pod that is replaced takes its open epochs with it."""
    wrong = {**STREAM, "spec": {**STREAM["spec"], "publishers": {"advertise": "not a host"}}}
    world = World(wrong)
    await world.reconciler.reconcile(PLACE)
    assert [line for line in world.written if "Pod" in line.split()] == []
    del world.there.items["Service", "flights"]
    world.cache.drop(next(item for item in world.cache.children(*PLACE, ()) if item["kind"] == "Service"))
    await world.reconciler.reconcile(PLACE)
    assert "apply Service" in world.written, "what is lost is made all the same"


async def test_with_a_manifest_that_is_right_it_is_rolled() -> None:
    world = World(STREAM)
    await world.reconciler.reconcile(PLACE)
    assert "delete Pod" in world.written


@pytest.mark.rule("S26")
@pytest.mark.parametrize("changed", [{"uid": "u2"}, {"generation": 2}])
async def test_nothing_is_written_for_a_stream_that_is_another_or_declared_otherwise_by_now(changed: Object) -> None:
    world = World(STREAM)
    newer = {**STREAM["metadata"], "resourceVersion": "99", **changed}
    world.there.items["Stream", "flights"] = {**copy.deepcopy(STREAM), "metadata": newer}
    with pytest.raises(OutOfDate, match="has changed"):
        await world.reconciler.reconcile(PLACE)
    assert world.written == []
