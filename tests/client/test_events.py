"""`events()` in full: what comes, in which order, under every choice; its cursors and those of `epochs()` mix."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import AppendsLost, HistoryTruncated

READ = """
import asyncio, json, sys, epochal
from epochal import Cursor, Data, Epoch, EpochAborted
async def main():
    stream, method, cursor = sys.argv[1:]
    async with epochal.connect() as client, client.subscribe(stream, since=Cursor.from_json(cursor)) as sub:
        async for item in getattr(sub, method)():
            if isinstance(item, Data | Epoch):
                print(json.dumps([item.time, list(item.records())]))
            elif isinstance(item, EpochAborted):
                print(json.dumps([item.time, None]))
asyncio.run(main())
"""


def told(event: epochal.Data | object) -> object:
    """A batch as (time, record), anything else as it is."""
    return (event.time, event.records()[0]) if isinstance(event, epochal.Data) else event


async def publish_the_past(writer: epochal.Writer) -> None:
    """0 is complete, 1 aborted, 2 and 3 are under way."""
    await writer.append(0, ["a"], topic=b"x/1")
    await writer.append(0, ["b"], topic=b"y/1")
    await writer.append(1, ["c"], topic=b"x/1")
    await writer.abort(1)
    await writer.advance(2)
    await writer.append(2, ["d"], topic=b"x/2")
    await writer.append(3, ["gone"], topic=b"x/2")


async def publish_the_rest(writer: epochal.Writer) -> None:
    await writer.append(2, ["late"], topic=b"x/1")
    await writer.abort(3)
    await writer.advance(4)
    await writer.append(4, ["e"], topic=b"x/1")
    await writer.append(5, ["f"], topic=b"y/2")
    await writer.finish()


PAST = [(0, "a"), (0, "b"), (1, "c"), epochal.EpochAborted(1), epochal.FrontierChanged((2,)), (2, "d"), (3, "gone")]
REST: list[object] = [
    (2, "late"), epochal.EpochAborted(3), epochal.FrontierChanged((4,)),
    (4, "e"), (5, "f"), epochal.FrontierChanged(()),
]  # fmt: skip
OF_X = {"a", "c", "d", "gone", "late", "e"}


def chosen(events: list[object], topics: bool) -> list[object]:
    return [event for event in events if not (topics and isinstance(event, tuple) and event[1] not in OF_X)]


@pytest.mark.rule("S15", "S16", "S33")
async def test_each_choice_of_since_partial_and_topics(services) -> None:
    stream = await services.stream()
    subs: dict[tuple[str, bool, bool], epochal.Subscription] = {}
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        async with client.subscribe(stream, since="start") as sub:
            await sub.ready.wait()
            cursor = sub.cursor()
        await publish_the_past(writer)
        async with asyncio.timeout(PATIENCE):
            for since in ("live", "start", "cursor"):
                for partial in (False, True):
                    for topics in (False, True):
                        begin: Any = {"live": None, "start": "start", "cursor": cursor}[since]
                        choice: Any = ({"reject": [b"y/"]} if partial else {"topics": [b"x/"]}) if topics else {}
                        sub = client.subscribe(stream, since=begin, partial=partial, **choice)
                        subs[since, partial, topics] = await sub.__aenter__()
                        await sub.ready.wait()
            await publish_the_rest(writer)
            for (since, partial, topics), sub in subs.items():
                events = [told(event) async for event in sub.events()]
                if since != "live":
                    expected = PAST + REST
                elif partial:
                    expected = REST
                else:  # 2 and 3 were under way at the join
                    expected = [event for event in REST if event not in ((2, "late"), epochal.EpochAborted(3))]
                start = epochal.FrontierChanged((2,) if since == "live" else (0,))
                found = [event for event in events if event != start]
                wanted = [event for event in chosen(expected, topics) if event != start]
                assert found == wanted, (since, partial, topics)
                await sub.__aexit__(None, None, None)


@pytest.mark.rule("E16")
@pytest.mark.parametrize("first", ["events", "epochs"])
async def test_a_cursor_of_one_method_is_resumed_by_the_other_in_another_process(services, first: str) -> None:
    stream = await services.stream(segments=2)
    second = {"events": "epochs", "epochs": "events"}[first]
    keys = [b"a", b"b", b"c", b"d"]
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            for time in range(6):
                for key in keys:
                    await writer.append(time, [f"{time}{key.decode()}"], key=key)
                if time == 3:
                    await writer.abort(time)
                else:
                    await writer.advance(time + 1)
            await writer.finish()
        whole = {time: sorted(f"{time}{key.decode()}" for key in keys) for time in range(6) if time != 3}
        cursors: dict[str, list[int]] = {}
        async with client.subscribe(stream, since="start") as sub:
            await sub.ready.wait()
            seen: dict[int, list[str]] = {}
            cursors[sub.cursor().to_json()] = []
            async for item in getattr(sub, first)():
                if isinstance(item, epochal.Epoch):
                    seen[item.time] = sorted(item.records())
                elif isinstance(item, epochal.Data):
                    seen.setdefault(item.time, []).extend(item.records())
                done = [time for time in whole if sorted(seen.get(time, [])) == whole[time]]
                cursors[sub.cursor().to_json()] = done
        for cursor in list(cursors)[:: len(cursors) // 2]:
            child = await services.run(READ, stream, second, cursor)
            out, _ = await child.communicate()
            assert child.returncode == 0
            rest: dict[int, list[str]] = {}
            for line in out.decode().splitlines():
                time, records = json.loads(line)
                if records is not None and time != 3:
                    assert time not in rest or second == "events", "an epoch comes once"
                    rest.setdefault(time, []).extend(records)
            for time, records in rest.items():
                assert sorted(records) == whole[time], "what comes again comes whole"
            assert {*rest} | {*cursors[cursor]} == {*whole}, "nothing is missed"
            if first == "epochs":
                assert not {*rest} & {*cursors[cursor]}, "what was given as an epoch does not come again"


async def test_a_cursor_older_than_what_is_kept(services) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        async with client.subscribe(stream) as sub:
            await sub.ready.wait()
            await writer.append(0, ["small"])
            async for event in sub.events():
                if isinstance(event, epochal.Data):
                    break
            cursor = sub.cursor()
        async with client.subscribe(stream, since=cursor) as sub:
            async with asyncio.timeout(PATIENCE):
                while not isinstance(event := await anext(sub.events()), epochal.Data):
                    pass
            assert event.records() == ["small"], "its epoch is not complete, so it comes again"
        for time in range(1, 9):
            await writer.advance(time)
            await writer.append(time, [b"x" * 300_000])
        async with client.subscribe(stream, since=cursor) as sub:
            with pytest.raises(HistoryTruncated):
                async with asyncio.timeout(PATIENCE):
                    await anext(sub.events())
            assert sub.cursor() == cursor, "where it stood"


async def until(events: AsyncIterator[object], kind: type) -> list[object]:
    """Everything up to the first event of a kind."""
    seen: list[object] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            seen.append(told(event))
            if isinstance(event, kind):
                break
    return seen


@pytest.mark.rule("E11", "E17", "S19")
async def test_what_the_death_of_a_publisher_looks_like(services) -> None:
    stream = await services.stream(segments=2, publishers={"segmentsPerPod": 1}, dedicated=True)
    victim, _ = services.publishers(stream)
    async with (
        epochal.connect(services.url) as client,
        client.writer(stream) as writer,
        client.subscribe(stream) as sub,
    ):
        await sub.ready.wait()
        first = (await client.catalog.lookup(*stream.split("/"))).segments[0].incarnation
        keys = {writer.segment(bytes([n])): bytes([n]) for n in range(64)}
        await writer.append(0, ["whole"], key=keys["0"])
        await writer.advance(1)
        await writer.append(1, ["lost"], key=keys["0"])
        events = sub.events()
        missing: set[object] = {(1, "lost"), epochal.FrontierChanged((1,))}  # which the other segment may tell later
        while missing:
            async with asyncio.timeout(PATIENCE):
                missing.discard(told(await anext(events)))
        os.kill(victim, signal.SIGKILL)
        (down, *between, up) = await until(events, epochal.SegmentUp)
        assert isinstance(down, epochal.SegmentDown)
        seq = between[0].seq  # type: ignore[attr-defined]  # what the writer's return has logged by now
        rewound, gap, aborted, *moves = between
        assert isinstance(gap, epochal.Gap)
        assert gap.incarnation > first
        (below,) = gap.below
        assert (rewound, gap) == (
            epochal.Rewound("0", gap.incarnation, seq), epochal.Gap("0", gap.incarnation, seq, (below,))
        )  # fmt: skip
        assert (sub.gaps(), sub.gaps()) == ((gap,), ()), "each once, also for one who reads epochs()"
        assert below >= 1, "and whatever may have been active beside what was lost"
        assert aborted == epochal.EpochAborted(1)
        assert {*moves} == {epochal.FrontierChanged((1,))}, "once, or twice where the writer was back first"
        assert up == epochal.SegmentUp("0")
        with pytest.raises(AppendsLost):  # noqa: PT012 - which of them meets it is a matter of time
            async with asyncio.timeout(PATIENCE):
                while True:
                    await writer.advance(2)
        await writer.advance(below + 1)
        await writer.append(below + 1, ["after"], key=keys["0"])
        assert (below + 1, "after") in await until(events, epochal.Data)
