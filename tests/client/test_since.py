"""Where a subscription begins, and how events come to it, pushed or pulled: the same with both, against publishers."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import HistoryTruncated, TimeShapeError, UsageError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.subscriber.follower import Follower

MODES = [pytest.param({}, id="pushed"), pytest.param({"push": False, "poll": 0.05}, id="pulled")]
modes = pytest.mark.parametrize("mode", MODES)


def whole(epoch: epochal.Epoch | epochal.EpochAborted) -> tuple[Any, list[Any]]:
    """Its time, and its records in a fixed order."""
    assert isinstance(epoch, epochal.Epoch)
    return epoch.time, sorted(epoch.records())


async def times(subscription: epochal.Subscription) -> list[Any]:
    async with subscription as sub:
        return [epoch.time async for epoch in sub.epochs()]


@modes
@pytest.mark.rule("E13", "E16", "E20")
async def test_a_time_without_records_takes_nothing_from_who_comes_back(services, mode: dict[str, Any]) -> None:
    """A weekend of advances, all of which retention has removed: every form goes on with what comes after it."""
    stream = await services.stream(history={"retention": {"mode": "none"}})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        async with client.subscribe(stream) as sub:  # pushed: with nothing kept, who only pulls is too late for a batch
            await sub.ready.wait()
            at = await writer.append(3, ["friday"])
            await writer.advance(4)
            assert whole(await anext(sub.epochs())) == (3, ["friday"])
            cursor = sub.cursor()
        async with asyncio.timeout(PATIENCE), client.subscribe(stream) as sub:
            await sub.ready.wait()
            for time in range(5, 1501):
                writer.advance_nowait(time)
            async for event in sub.events():
                if isinstance(event, epochal.FrontierChanged) and event.frontier == (1500,):
                    break
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as entered:
            forms = (cursor, "time:3", "frontier:[4]", f"seq:{at.seq + 1}", f'cut:{{"0":{at.seq}}}')
            back = [await entered.enter_async_context(client.subscribe(stream, since=each, **mode)) for each in forms]
            for sub in back:
                await sub.ready.wait()
                assert sub.saw_whole(700)
            if not mode:
                await writer.append(1500, ["monday"])
                await writer.finish()
                assert [[whole(each) async for each in sub.epochs()] for sub in back] == [[(1500, ["monday"])]] * 5
        for since in ("time:2", "frontier:[3]", "seq:-1"):
            with pytest.raises(HistoryTruncated):
                await times(client.subscribe(stream, since=since, **mode))


@modes
@pytest.mark.rule("E20", "Q3", "Q7")
async def test_each_form_gives_the_epochs_that_it_asks_for(services, mode: dict[str, Any]) -> None:
    stream, pairs = await services.stream(), await services.stream(shape="(int, int)", segments=2)
    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            for time in range(6):
                at = await writer.append(time, [time])
                assert at.seq == 2 * time
                await writer.advance(time + 1)
            await writer.finish()
        async with client.writer(pairs) as writer:
            for pair in [(a, b) for a in range(3) for b in range(3)]:
                for key in (b"a", b"b", b"c"):
                    writer.append_nowait(pair, [1], key=key)
            await writer.finish()
        asked: list[tuple[str, Any, list[Any]]] = [
            (stream, "start", [*range(6)]),
            (stream, "time:2", [3, 4, 5]),
            (stream, "time:5", []),
            (stream, "frontier:[2]", [2, 3, 4, 5]),
            (stream, "frontier:[]", []),
            (stream, "seq:-1", [*range(6)]),
            (stream, "seq:4", [3, 4, 5]),
            (stream, 'cut:{"0":3}', [2, 3, 4, 5]),
            (pairs, "time:[1,1]", [(0, 2), (1, 2), (2, 0), (2, 1), (2, 2)]),
            (pairs, "frontier:[[0,2],[1,1]]", [(0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]),
            (pairs, 'cut:{"0":-1,"1":-1}', [(a, b) for a in range(3) for b in range(3)]),
        ]
        for name, since, expected in asked:
            assert await times(client.subscribe(name, since=since, **mode)) == expected, since
        wrong: list[tuple[str, type[Exception], str]] = [
            ("seq:4", UsageError, "one segment; this one has 2"),
            ('cut:{"0":4}', UsageError, "the stream has"),
            ("time:4", TimeShapeError, "shape"),
        ]
        for since, kind, told in wrong:
            with pytest.raises(kind, match=told):
                await client.subscribe(pairs, since=since, **mode).__aenter__()
        with pytest.raises(UsageError, match="no event 99"):
            await times(client.subscribe(stream, since="seq:99", **mode))


class Counting:
    """What publishers send of their histories, as clients of this process take it in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = self.bytes = 0
        take_in = Follower.answered

        def counting(follower: Follower, message: m.Message, now: float) -> None:
            if isinstance(message, m.Data | m.Frontier | m.Aborted):
                self.events += 1
                self.bytes += sum(len(frame) for frames in wire.encode(message) for frame in frames)
            take_in(follower, message, now)

        monkeypatch.setattr(Follower, "answered", counting)

    def taken(self) -> tuple[int, int]:
        """(events, bytes) since the last call."""
        taken, self.events, self.bytes = (self.events, self.bytes), 0, 0
        return taken


@modes
@pytest.mark.parametrize("history", [{}, {"storage": {"size": "1Gi"}}], ids=["memory", "disk"])
@pytest.mark.rule("E20", "Q3", "Q7", "Q16")
async def test_what_is_not_asked_for_is_not_sent_and_the_epochs_are_the_same(
    services, mode: dict[str, Any], history: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    stream = await services.stream(segments=2, history=history, dedicated=True)
    pairs = await services.stream(shape="(int, int)", segments=2, history=history, dedicated=True)

    async def told(name: str, since: str) -> list[Any]:
        async with asyncio.timeout(PATIENCE), client.subscribe(name, since=since, **mode) as sub:
            return [
                whole(epoch) if isinstance(epoch, epochal.Epoch) else (epoch.time, None) async for epoch in sub.epochs()
            ]

    async with epochal.connect(services.url) as client:
        async with client.writer(stream) as writer:
            for time in range(300):
                for key in (b"a", b"b", b"c"):
                    writer.append_nowait(time, [key.decode() * 100], key=key)
                if time % 50 == 45:
                    await writer.abort(time)
                writer.advance_nowait(time + 1)
            await writer.finish()
        async with client.writer(pairs) as writer:
            for day in range(60):
                for half in range(2):
                    writer.append_nowait((day, half), [day], key=b"%d" % day)
                await writer.advance((day + 1, 0))
            await writer.finish()
        if history:  # what a publisher finds as it starts is on disk alone
            for process in services.publishers(stream) + services.publishers(pairs):
                os.kill(process, signal.SIGKILL)
        asked: list[tuple[str, str, float]] = [
            (stream, "time:279", 0.2), (stream, "frontier:[290]", 0.2), (stream, "time:299", 0.01),
            (stream, "frontier:[]", 0.0), (stream, "frontier:[0]", 1.0), (pairs, "frontier:[[55,0]]", 0.2),
            (pairs, "frontier:[[55,1],[57,0]]", 0.2), (pairs, "time:[55,1]", 1.0),
        ]  # fmt: skip
        for name, since, part in asked:
            found, (events, size) = await told(name, since), counting.taken()
            with monkeypatch.context() as patched:
                patched.setattr(m, "SINCE_TIMES", "what no publisher has")
                before, (all_events, all_bytes) = await told(name, since), counting.taken()
            assert found == before, since
            assert bool(found) == (part > 0.01)
            assert events <= part * all_events, since
            assert size <= part * all_bytes, since
            assert all_events > 100


@modes
@pytest.mark.rule("E20", "Q2")
async def test_what_may_be_gone_is_an_error_and_no_short_answer(services, mode: dict[str, Any]) -> None:
    stream = await services.stream(history={"retention": {"bytes": "1Mi"}})
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        for time in range(8):
            await writer.append(time, [b"x" * 300_000])
            await writer.advance(time + 1)
        async with client.subscribe(stream, since="start", **mode) as sub:
            first = (await anext(sub.epochs())).time
        assert 0 < first < 7
        for since in (f"time:{first - 2}", f"frontier:[{first - 1}]", "seq:0", 'cut:{"0":0}'):
            with pytest.raises(HistoryTruncated):
                await times(client.subscribe(stream, since=since, **mode))
        async with client.subscribe(stream, since=f"time:{first}", **mode) as sub:
            assert (await anext(sub.epochs())).time == first + 1


@modes
@pytest.mark.rule("Q5", "Q7", "E16")
async def test_history_and_what_comes_now_join_without_a_seam(services, mode: dict[str, Any]) -> None:
    stream = await services.stream(segments=2)

    async def read(since: Any) -> tuple[list[tuple[int, list[Any]]], str]:
        """Read half, and say where to go on."""
        async with client.subscribe(stream, since=since, **mode) as sub:
            epochs = sub.epochs()
            found = [await anext(epochs) for _ in range(20)]
            return [whole(epoch) for epoch in found], sub.cursor().to_json()

    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        reading = late = asyncio.ensure_future(read("start"))
        for time in range(40):
            for key in (b"a", b"b", b"c"):
                writer.append_nowait(time, [[time, key.decode()]], key=key)
            writer.advance_nowait(time + 1)
            if time == 15:
                late = asyncio.ensure_future(read("time:9"))
            if time % 5 == 0:
                await writer.flush()
        await writer.finish()
        async with asyncio.timeout(PATIENCE):
            (seen, cursor), (behind, _) = await asyncio.gather(reading, late)
            async with client.subscribe(stream, since=epochal.Cursor.from_json(cursor), **mode) as sub:
                rest = [whole(epoch) async for epoch in sub.epochs()]
    expected = [(time, [[time, key] for key in "abc"]) for time in range(40)]
    assert seen + rest == expected
    assert behind == expected[10:30]


@modes
@pytest.mark.rule("S16", "Q7")
async def test_events_frontiers_and_aborts_are_the_same(services, mode: dict[str, Any]) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        await writer.append(0, ["before"])
        async with client.subscribe(stream, **mode) as sub:
            await sub.ready.wait()
            assert sub.frontier() == (0,)
            await writer.append(0, ["after"])
            await writer.append(1, ["next"])
            await writer.advance(1)
            await writer.abort(1)
            await writer.append(2, ["last"])
            await writer.finish()
            async with asyncio.timeout(PATIENCE):
                events = [event async for event in sub.events()]
            assert not sub.saw_whole(0)
            assert sub.saw_whole(2)
    frontier = epochal.FrontierChanged
    told = [event.records()[0] if isinstance(event, epochal.Data) else event for event in events]
    assert [event for event in told if event != frontier((0,))] == [
        "next", frontier((1,)), epochal.EpochAborted(1), "last", frontier(()),
    ]  # fmt: skip


@pytest.mark.rule("Q15", "Q7")
async def test_it_changes_between_both_at_any_time_without_loss_or_repetition(services) -> None:
    stream = await services.stream(segments=2)
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:  # noqa: SIM117 - reads better
        async with client.subscribe(stream, poll=0.02) as sub:
            await sub.ready.wait()
            epochs = sub.epochs()
            seen: list[Any] = []
            for time in range(120):
                for key in (b"a", b"b", b"c"):
                    writer.append_nowait(time, [key.decode()], key=key)
                writer.advance_nowait(time + 1)
                if time % 7 == 0:
                    sub.push(time % 2 == 0)
                    await writer.flush()
                if time % 7 == 3:
                    sub.push(False)
                    sub.push(True)
                if time % 20 == 19:
                    sub.push(time % 40 == 19)
                    async with asyncio.timeout(PATIENCE):
                        seen += [await anext(epochs) for _ in range(20)]
            await writer.finish()
    assert [whole(epoch) for epoch in seen] == [(n, ["a", "b", "c"]) for n in range(120)]


@pytest.mark.rule("Q7")
async def test_who_pulls_never_connects_to_where_events_are_pushed(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:  # noqa: SIM117 - reads better
        async with client.subscribe(stream, push=False, poll=0.02) as sub:
            await sub.ready.wait()
            await writer.append(0, ["x"])
            await writer.advance(1)
            async with asyncio.timeout(PATIENCE):
                assert whole(await anext(sub.epochs())) == (0, ["x"])
            (connection,) = [link._connection for link in sub._links]
            assert connection is not None
            assert connection._events is None
            sub.push(True)
            async with asyncio.timeout(PATIENCE):
                while connection._events is None:  # noqa: ASYNC110 - nothing tells of it, on purpose
                    await asyncio.sleep(0.01)
            sub.push(False)
            assert connection._events is None


async def test_the_time_between_two_pulls_is_above_nothing(services) -> None:
    async with epochal.connect(services.url) as client:
        for poll in (0, -1.0, float("nan")):
            with pytest.raises(UsageError, match="poll"):
                client.subscribe("test/any", poll=poll)


@pytest.mark.rule("Q15")
async def test_a_blocking_subscription_changes_as_well(services) -> None:
    stream = await services.stream()

    def work() -> list[Any]:
        with (
            epochal.connect_blocking(services.url) as client,
            client.subscribe(stream, push=False, poll=0.05) as sub,
            client.writer(stream) as writer,
        ):
            sub.ready.wait(PATIENCE)
            writer.append(0, ["x"])
            sub.push(True)
            writer.append(1, ["y"])
            writer.finish()
            return [whole(epoch) for epoch in sub.epochs(timeout=PATIENCE)]

    assert await asyncio.to_thread(work) == [(0, ["x"]), (1, ["y"])]
