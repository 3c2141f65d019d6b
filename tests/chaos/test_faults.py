"""Named faults of real processes and of the network between them, one a test, each with exactly what must come of it.

Apart from the rounds, where faults meet as chance has it: here each comes alone, and its time is watched. Linux only:
the proxy needs a second loopback address.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.processes import SUPERSEDED, stopped
from tests.chaos.proxy import BOTH, Trouble, Way
from tests.chaos.scene import Scene
from tests.patience import PATIENCE

import epochal
from epochal.errors import CatalogUnavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


async def until(events: Any, kind: type, heard: list[Any]) -> Any:
    """The next event of `kind`; the others go to `heard`."""
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if isinstance(event, kind):
                return event
            heard.append(event)
    raise AssertionError(f"the stream ended without {kind.__name__}")


def records(heard: list[Any]) -> list[int]:
    """The records of all that was heard, in its order."""
    return [record for event in heard if isinstance(event, epochal.Data) for record in event.records()]


async def read(epochs: AsyncIterator[Any], told: list[Any]) -> None:
    """Note what comes."""
    async for epoch in epochs:
        told.append(epoch)  # noqa: PERF401 - as they come


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        scene = Scene(tmp_path)
        await scene.start(stack, heartbeat_interval=0.3, heartbeat_timeout=1.0)
        yield scene


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Scene]:
    """With logs on disk, where a new epoch waits for no catalog (E11)."""
    async with AsyncExitStack() as stack:
        scene = Scene(tmp_path, history={"storage": {"size": "1Gi"}})
        await scene.start(stack)
        yield scene


@pytest.mark.rule("S19", "S33")
@pytest.mark.parametrize("silence", [pytest.param(3.0, marks=pytest.mark.long, id="as it is set"), 2.0])
async def test_a_half_open_connection_is_noticed_by_both_sides_and_replaced(scene: Scene, silence: float) -> None:
    """Fault 18: packets vanish, nobody is told; the timers of both ends are all there is."""
    clock = asyncio.get_running_loop().time
    async with scene.reader(silence) as sub:
        events, heard = sub.events(), list[Any]()
        await scene.publish()
        while len(records(heard)) < 4:
            heard.append(await asyncio.wait_for(anext(events), PATIENCE))
        assert await scene.subscribers() == 2
        begun = clock()
        for name in ("events", "requests"):
            proxy = scene.publisher.proxies[name]
            proxy.suffer(Trouble(blocked=BOTH), list(proxy.connections))  # those to come are sound
        meanwhile = await scene.publish()
        down = await until(events, epochal.SegmentDown, heard)
        took = clock() - begun
        assert f"silent for {silence:g} s" in down.reason
        assert took > silence - 1.1, took  # the last heartbeat came up to a second before
        assert meanwhile not in records(heard)
        await until(events, epochal.SegmentUp, heard)
        last = await scene.publish()
        while len(records(heard)) < 4 * (last + 1):
            heard.append(await asyncio.wait_for(anext(events), PATIENCE))
        assert sorted(records(heard)) == sorted([*range(last + 1)] * 4), "healed without loss or repetition"
        async with asyncio.timeout(PATIENCE):
            while await scene.subscribers() != 2:  # noqa: ASYNC110 - what the publisher shows
                await asyncio.sleep(0.05)


@pytest.mark.rule("Q7", "Q11", "Q12")
async def test_what_can_no_longer_be_pushed_is_pulled(scene: Scene) -> None:
    """Fault 18, on one connection of two: no push gets through, also not on a new one."""
    async with scene.reader() as sub:
        epochs = sub.epochs()
        first = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == first
        pushes = scene.publisher.proxies["events"]
        pushes.suffer(Trouble(blocked=BOTH))
        pulled = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == pulled
        await pushes.heal()
        last = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == last


@pytest.mark.rule("S19", "S22")
async def test_a_way_that_is_blocked_from_the_subscriber_ends_its_subscription(scene: Scene) -> None:
    """Fault 19: pushes arrive, what the subscriber says does not; the library's heartbeats end it."""
    async with scene.reader() as sub:
        epochs = sub.epochs()
        time = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == time
        for name in ("events", "requests"):
            scene.publisher.proxies[name].suffer(Trouble(blocked=frozenset({Way.UP})))
        async with asyncio.timeout(PATIENCE):
            while await scene.subscribers():  # noqa: ASYNC110 - what the publisher shows
                await asyncio.sleep(0.05)
        missed = [await scene.publish() for _ in range(3)]
        for name in ("events", "requests"):
            await scene.publisher.proxies[name].heal()
        assert [(await asyncio.wait_for(anext(epochs), PATIENCE)).time for _ in missed] == missed


@pytest.mark.long
@pytest.mark.rule("S19")
async def test_without_a_catalog_streams_with_storage_flow_on_and_lookups_fail_fast(stored: Scene) -> None:
    """Fault 8: longer away than a lease lasts; then publishers are known again, without being asked."""
    scene, clock = stored, asyncio.get_running_loop().time
    async with scene.reader() as sub:
        epochs = sub.epochs()
        await scene.catalog.kill()
        until = clock() + 3.0  # a lease lasts 2 s
        while clock() < until:
            time = await scene.publish()
            assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == time
        begun = clock()
        with pytest.raises(CatalogUnavailable) as caught:
            await scene.client.catalog.lookup("test", "chaos")
        assert caught.value.retryable
        assert clock() - begun < 10  # a second of patience; not the time-outs of a network
        await scene.catalog.start()
        info = await scene.client.catalog.lookup("test", "chaos", wait=PATIENCE)
        assert [segment.id for segment in info.segments] == ["0", "1"]
        time = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == time
        async with scene.client.subscribe("test/chaos", since="start") as late:
            assert (await asyncio.wait_for(anext(late.epochs()), PATIENCE)).time == 0


@pytest.mark.long
@pytest.mark.rule("E12", "S19")
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_publisher_that_stalled_past_its_lease_publishes_nothing_twice(scene: Scene, replaced: bool) -> None:
    """Fault 5: it asks for its lease first; when another has taken over it ends, and what it held is told by nobody."""
    publisher = scene.publisher
    async with scene.reader() as sub:
        epochs = sub.epochs()
        first = await scene.publish()
        assert (await asyncio.wait_for(anext(epochs), PATIENCE)).time == first
        if replaced:
            os.kill(publisher.pid, signal.SIGSTOP)
            assert await publisher.replace() == SUPERSEDED
        else:
            async with stopped(publisher.pid):
                await asyncio.sleep(5.0)  # a lease lasts 2 s
        published: list[int] = []
        told: list[Any] = []
        reading = asyncio.create_task(read(epochs, told))
        async with asyncio.timeout(PATIENCE):
            while sum(isinstance(epoch, epochal.Epoch) for epoch in told) < 3 or told[-1].time < published[-1]:
                if len(published) < 100:
                    published.append(await scene.publish())
                await asyncio.sleep(0.05)
                assert not reading.done(), reading
        reading.cancel()
        times = [epoch.time for epoch in told]
        assert all(sorted(epoch.records()) == [epoch.time] * 4 for epoch in told if isinstance(epoch, epochal.Epoch))
        if replaced:  # without a volume; an epoch of which half came before the subscriber was back is aborted (E17)
            assert times == published[-len(times) :]
            assert isinstance(told[-1], epochal.Epoch)
        else:
            assert times == published
            assert all(isinstance(epoch, epochal.Epoch) for epoch in told)
