"""What wakes the operator, and what does not stop it."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import pytest
from tests.patience import PATIENCE

from epochal.catalog_api.answers import Owner, RelayInfo, SegmentInfo, StreamInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.errors import Unavailable
from epochal.resources.cluster.rollout import Rollout
from epochal.resources.cluster.stream import FINALIZER, OPERATOR
from epochal.resources.manifest import OBJECT_UID
from epochal.transport.shutdown import ended
from epochal_operator.api import ThrottledApi
from epochal_operator.cache import Cache, Place, RelayPlace
from epochal_operator.catalog_sync import CatalogSync, RelayName, declared_of
from epochal_operator.controller import Controller
from epochal_operator.lease import LeaseLost
from epochal_operator.ownership import Claims
from epochal_operator.reconciler import Reconciler
from epochal_operator.relays import RelayReconciler
from epochal_operator.settings import OperatorSettings
from epochal_operator.telemetry import OperatorTelemetry

SETTINGS = OperatorSettings(catalog="http://c:1", image="i", retry_first=0.05, retry_last=0.1)
SERVES = Owner("n.a-0", 1, True, {}, "now")


@dataclass
class Looks:
    """A reconciler that only notes what it is asked to look at."""

    cache: Cache = field(default_factory=Cache)
    catalog_sync: CatalogSync | None = None
    claims: Claims = field(init=False)
    loads: object = None
    """What was listed last."""
    seen: list[Place | RelayPlace] = field(default_factory=list)
    raises: dict[Place | RelayPlace, Exception] = field(default_factory=dict)
    rollout: Rollout = field(default_factory=lambda: Rollout("", 3, 300.0))
    looked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def __post_init__(self) -> None:
        self.claims = Claims(SETTINGS.operator, self.cache)

    def listed(self, loads: object) -> None:
        self.loads = loads

    async def reconcile(self, place: Place | RelayPlace) -> None:
        self.seen.append(place)
        self.looked.release()
        if place in self.raises:
            raise self.raises[place]


def controller(looks: Looks) -> Controller:
    made = Controller(
        SETTINGS, ThrottledApi(), cast(Reconciler, looks), cast(RelayReconciler, looks), OperatorTelemetry()
    )
    made.listed.set()
    return made


def item(name: str, uid: str, version: int = 1, stream: str = "") -> dict[str, Any]:
    metadata = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": {"epochal.dev/stream": stream} if stream else {}}}


async def test_a_bug_that_one_stream_brings_out_does_not_keep_others_waiting() -> None:
    looks = Looks(raises={("n", "bad"): KeyError("bug")})
    acting = controller(looks)
    working = asyncio.create_task(acting.work())
    for name in ("bad", "good"):
        acting.queue.add(("n", name))
    async with asyncio.timeout(PATIENCE):
        for _ in range(4):  # three tries of the bad one, and the good one
            await looks.looked.acquire()
    assert sorted(looks.seen, key=str) == [*[("n", "bad")] * 3, ("n", "good")]
    assert not working.done()
    working.cancel()


async def test_without_the_lease_no_one_works() -> None:
    acting = controller(Looks(raises={("n", "a"): LeaseLost("gone")}))
    acting.queue.add(("n", "a"))
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(PATIENCE):
            await acting.work()


async def test_an_event_of_a_child_wakes_its_stream_and_old_news_wakes_none() -> None:
    acting = controller(Looks())
    acting.saw("Pod", "ADDED", item("a-0", "1", stream="a"))
    acting.saw("Service", None, item("b", "2", stream="b"))
    acting.saw("Pod", "ADDED", item("other", "3"))
    assert [await acting.queue.get(), await acting.queue.get()] == [("n", "a"), ("n", "b")]
    for place in (("n", "a"), ("n", "b")):
        acting.queue.done(place)
    acting.saw("Pod", "MODIFIED", item("a-0", "1", stream="a"))
    assert len(acting.queue) == 0
    acting.saw("Pod", "DELETED", item("a-0", "1", 2, stream="a"))
    assert await acting.queue.get() == ("n", "a")


async def woken(acting: Controller) -> set[Place | RelayPlace]:
    found = {await acting.queue.get() for _ in range(len(acting.queue))}
    for place in found:
        acting.queue.done(place)
    return found


async def test_relays_are_woken_by_themselves_by_what_they_have_and_by_their_stream() -> None:
    acting = controller(Looks())
    relay = {**item("near", "r"), "spec": {"stream": "a"}}
    acting.saw("Relay", "ADDED", relay)
    assert await woken(acting) == {RelayPlace("n", "near")}
    acting.saw("Stream", "ADDED", item("a", "s"))
    assert await woken(acting) == {("n", "a"), RelayPlace("n", "near")}
    acting.saw("Stream", "ADDED", item("b", "t"))
    assert await woken(acting) == {("n", "b")}
    deployment = item("near-relay", "d")
    deployment["metadata"]["labels"] = {"epochal.dev/relay": "near"}
    acting.saw("Deployment", "MODIFIED", deployment)
    assert await woken(acting) == {RelayPlace("n", "near")}
    acting.saw("Relay", "ADDED", {**item("b", "v"), "spec": {"stream": "a"}})
    assert await woken(acting) == {RelayPlace("n", "b"), ("n", "b")}, "the stream may have wanted this name"
    acting.saw("Relay", "DELETED", {**item("near", "r", 2), "spec": {"stream": "a"}})
    assert await woken(acting) == {RelayPlace("n", "near")}


class Relayed(CatalogSync):
    """A catalog that lists two relays of one name."""

    def __init__(self) -> None:
        pass

    async def list(self) -> tuple[StreamInfo, ...]:
        return ()

    async def relay_loads(self) -> dict[RelayName, int | None]:
        return {("n", "a", "near"): 7}


class Listing(CatalogSync):
    """A catalog that lists these relays: name, load, and whether they have reported since it began."""

    def __init__(self, *relays: tuple[str, int, bool]) -> None:
        self._listed = [
            RelayInfo(
                name, name, "n/a", "u", {}, {}, "direct", 9, "ready", (), load, None, "", "now", verified=verified
            )
            for name, load, verified in relays
        ]
        self._catalog = cast(Any, self)

    async def relays(self) -> list[RelayInfo]:
        return self._listed


class Away(Relayed):
    """A catalog that goes away after the first list."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._answers = iter([()])

    async def list(self) -> tuple[StreamInfo, ...]:
        for answer in self._answers:
            return answer
        self.asked.set()
        raise Unavailable("it is away")


async def test_the_catalog_is_asked_for_relays_where_there_are_any() -> None:
    looks = Looks(catalog_sync=Relayed())
    acting = controller(looks)
    await acting.sweep()
    assert looks.loads is None
    acting.saw("Relay", "ADDED", {**item("near", "r"), "spec": {"stream": "a"}})
    await woken(acting)
    await acting.sweep()
    assert looks.loads == {("n", "a", "near"): 7}
    assert await woken(acting) == {RelayPlace("n", "near")}


async def test_what_is_known_of_relays_is_forgotten_while_the_catalog_is_away() -> None:
    """Else their number would follow subscribers of minutes ago."""
    away = Away()
    looks = Looks(catalog_sync=away)
    acting = controller(looks)
    acting.saw("Relay", "ADDED", {**item("near", "r"), "spec": {"stream": "a"}})
    await acting.sweep()
    assert looks.loads == {("n", "a", "near"): 7}
    sweeping = asyncio.create_task(acting.sweep_forever())
    await away.asked.wait()
    await asyncio.sleep(0)
    assert looks.loads is None
    await ended([sweeping])


async def test_what_was_listed_of_relays_is_forgotten_with_the_last_of_them() -> None:
    """Else a relay of this name that is made much later would have its subscribers."""
    looks = Looks(catalog_sync=Relayed())
    acting = controller(looks)
    relay = {**item("near", "r"), "spec": {"stream": "a"}}
    acting.saw("Relay", "ADDED", relay)
    await acting.sweep()
    assert looks.loads == {("n", "a", "near"): 7}
    acting.saw("Relay", "DELETED", {**relay, **item("near", "r", 2)})
    await acting.sweep()
    assert looks.loads is None


class NoWrites(Relayed):
    """A catalog whose database takes no writes: its disk is full."""

    async def list(self) -> tuple[StreamInfo, ...]:
        return (StreamInfo("n", "gone", "u9", 1, "Ready", {"metadata": {"annotations": {OBJECT_UID: "x"}}}),)

    async def collect(self, found: StreamInfo) -> None:
        raise Unavailable("the database takes no writes")


async def test_relays_follow_their_subscribers_while_the_catalog_can_delete_no_stream() -> None:
    looks = Looks(catalog_sync=NoWrites())
    acting = controller(looks)
    acting._api = cast(ThrottledApi, Empty())
    acting.saw("Relay", "ADDED", {**item("near", "r"), "spec": {"stream": "a"}})
    await woken(acting)
    with pytest.raises(Unavailable, match="no writes"):
        await acting.sweep()
    assert looks.loads == {("n", "a", "near"): 7}
    assert await woken(acting) == {RelayPlace("n", "near")}


class Empty:
    """An API server without any object."""

    async def get(self, *_: str) -> None:
        return None


async def test_the_subscribers_of_relays_are_not_known_before_all_have_reported_to_a_catalog_that_began_again() -> None:
    loads = await Listing(("near", 3, True), ("near", 4, True), ("far", 3, True), ("far", 0, False)).relay_loads()
    assert loads == {("n", "a", "near"): 7, ("n", "a", "far"): None}


def at_catalog(*lost: str) -> StreamInfo:
    """The stream n/a as the catalog lists it, while it waits for lost writers."""
    held = [HeldBack("0", 9, "lost", writer, 60.0, 90.0) for writer in lost]
    segment = SegmentInfo("0", 0, 2**64, "open", 1, (5,))
    return StreamInfo("n", "a", "u", 1, "Ready", {}, held_back=(*held, *held), segments=(segment,))


@pytest.mark.rule("E46")
async def test_a_stream_is_looked_at_when_it_begins_and_ends_to_wait_for_lost_writers() -> None:
    acting = controller(Looks())
    stream = {**item("a", "1"), "status": {"catalogUid": "u", "frontier": "[5]"}}
    acting.saw("Stream", "ADDED", stream)

    async def woken() -> bool:
        found = len(acting.queue) > 0
        if found:
            acting.queue.done(await acting.queue.get())
        return found

    assert await woken()
    for lost, expected in (
        ((), False), (("w", "v"), True), (("v", "w"), False), (("v",), True), ((), True), ((), False)
    ):  # fmt: skip
        acting._look_at_what_moved([at_catalog(*lost)])
        assert await woken() == expected, lost
    assert declared_of(at_catalog("w", "v")).concerns.lost_writers == ("v", "w")
    acting._look_at_what_moved([after_a_crash(7)])
    assert await woken()
    acting._look_at_what_moved([after_a_crash(7)])
    assert not await woken()
    assert declared_of(after_a_crash(7)).concerns.lost_epochs == ("segment 0 up to 7",)
    for seconds, expected in ((0.0, True), (4.5, False), (5.0, True), (6.0, False), (0.0, True)):
        acting._look_at_what_moved([waiting(seconds)])
        assert await woken() == expected, seconds


@pytest.mark.rule("E11")
@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ({"seconds": 0.1, "reported": 0.2}, ()),  # as with each new epoch
        ({"seconds": 5.0, "reported": 0.0}, ("0",)),
        ({"seconds": 0.0, "reported": 6.0}, ("0",)),  # it was so when the publisher was last heard
        ({"seconds": 9.0, "reported": 0.0, "size": 0}, ()),
        ({"seconds": 9.0, "reported": 9.0, "publisher": None}, ()),
    ],
)
def test_appends_that_wait_for_the_catalog_are_a_concern_once_they_have_waited_for_long(
    segment: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert declared_of(waiting(**segment)).concerns.waiting_segments == expected


@pytest.mark.rule("E10")
def test_a_full_disk_is_a_concern_with_the_systems_reason() -> None:
    def concerns(publisher: Owner | None = SERVES, **counters: float) -> tuple[str, ...]:
        segment = SegmentInfo("0", 0, 2**64, "open", 1, (5,), publisher=publisher, counters=counters)
        return declared_of(StreamInfo("n", "a", "u", 1, "Ready", {}, segments=(segment,))).concerns.full_disks

    words = "segment 0: its log cannot be written (No space left on device), and nothing is acknowledged"
    assert concerns(disk_full=28, disk_full_seconds=9.0) == (words,), "the same all the time: status is written seldom"
    assert concerns(disk_full=122, disk_full_seconds=9.0) == (
        words.replace("No space left on device", "Disk quota exceeded"),
    )
    assert concerns(disk_full=0, disk_full_seconds=0.0) == ()
    assert concerns(None, disk_full=28) == (), "what has no publisher is another concern"


def waiting(
    seconds: float, reported: float | None = 0.0, size: int = 9, publisher: Owner | None = SERVES
) -> StreamInfo:
    """The same stream, of whose segment appends wait for the catalog."""
    counters = {"waiting_bytes": size, "waiting_seconds": seconds}
    segment = SegmentInfo("0", 0, 2**64, "open", 1, (5,), publisher=publisher, counters=counters, reported=reported)
    return StreamInfo("n", "a", "u", 1, "Ready", {}, segments=(segment,))


def after_a_crash(*below: int) -> StreamInfo:
    """The same stream, whose publisher has lost its memory."""
    segment = SegmentInfo("0", 0, 2**64, "open", 2, (5,), below)
    return StreamInfo("n", "a", "u", 1, "Ready", {}, segments=(segment,))


async def test_nothing_of_another_operators_stream_wakes_anybody(caplog: pytest.LogCaptureFixture) -> None:
    acting = controller(Looks())
    foreign = item("a", "1")
    foreign["metadata"] |= {"finalizers": [FINALIZER], "annotations": {OPERATOR: "far/operator"}}
    acting.saw("Stream", "ADDED", foreign)
    acting.saw("Pod", "ADDED", item("a-0", "2", stream="a"))
    assert len(acting.queue) == 0
    [line] = caplog.messages
    assert "n/a is left alone: the operator far/operator looks after it" in line
    released = {**foreign, "metadata": {**foreign["metadata"], "resourceVersion": "2", "finalizers": []}}
    acting.saw("Stream", "MODIFIED", released)
    assert await acting.queue.get() == ("n", "a")


async def test_it_is_healthy_while_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = monotonic()
    monkeypatch.setattr("epochal_operator.controller.monotonic", lambda: now)
    acting = controller(Looks())
    acting.queue.running["n", "a"] = now - 601
    assert not acting.healthy, "a look that hangs"
    acting.queue.done(("n", "a"))
    assert acting.healthy
    now += 86400
    assert acting.healthy, "another operator acts, and this one has nothing to list"
    with pytest.raises(AssertionError, match="the API is entered"):
        await acting.resync_forever()
    now += 1000
    assert not acting.healthy, "no list for long"
