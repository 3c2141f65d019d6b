"""Many streams of one process, under a virtual clock: begun a few at a time, kept running each by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from tests.virtual_time import run

from epochal.errors import ConfigError, StreamGone, Unavailable
from epochal_publisher.serving import EXIT_FAILED, EXIT_SUPERSEDED, Ended
from epochal_publisher.shared.assignments import Serve, StopServing, parse
from epochal_publisher.shared.process import serve_shared
from epochal_publisher.shared.streams import Pace, SharedStreams
from epochal_publisher.ticker import Ticker

Ready = Callable[[Mapping[str, str]], None]
Script = Callable[["World", Serve, asyncio.Event, Ready], Awaitable[Ended]]


class World:
    """Streams that behave as a test says; notes when each began, and what was said."""

    def __init__(self, script: Script, **pace: float) -> None:
        self.begun: list[tuple[float, str]] = []
        self.said: list[tuple[float, str, str]] = []
        self.reasons: list[str] = []
        self.running = self.most = 0
        self._script = script
        self.streams = SharedStreams(self._run, self._say, Pace(**pace))  # type: ignore[arg-type]  # ints as they are

    def serve(self, *publishers: str) -> None:
        for publisher in publishers:
            self.streams.serve(Serve(publisher, f"demo/{publisher}", "u", ("0",)))

    def stop(self, publisher: str, uid: str = "u") -> None:
        self.streams.stop(StopServing(publisher, uid))

    async def _run(self, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        self.begun.append((round(asyncio.get_running_loop().time(), 3), asked.publisher))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._script(self, asked, stop, ready)
        finally:
            self.running -= 1

    def _say(self, publisher: str, uid: str, state: str, reason: str) -> None:
        self.said.append((round(asyncio.get_running_loop().time(), 3), publisher, state))
        self.reasons += [reason] if reason else []

    def states(self, publisher: str) -> list[str]:
        return [state for _, who, state in self.said if who == publisher]


async def well(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
    await asyncio.sleep(1)  # to begin
    ready({})
    await stop.wait()
    return Ended(0, "")


def test_a_few_begin_at_once_and_all_are_served() -> None:
    async def main() -> World:
        world = World(well, starts=4)
        world.serve(*(f"p{number}" for number in range(12)))
        await asyncio.sleep(0.5)
        assert len(world.begun) == 4
        await asyncio.sleep(10)
        assert [when for when, _, state in world.said if state == "ready"] == [1] * 4 + [2] * 4 + [3] * 4
        await world.streams.close()
        return world

    world = run(main())
    assert all(world.states(f"p{number}") == ["ready", "stopped"] for number in range(12))


def test_one_that_takes_long_to_begin_holds_up_no_other_and_is_not_ended() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        await asyncio.sleep(500 if asked.publisher.startswith("slow") else 1)
        ready({})
        await stop.wait()
        return Ended(0, "")

    async def main() -> World:
        world = World(script, starts=2, start_turn=10.0)
        world.serve("slow1", "slow2", "quick")
        await asyncio.sleep(600)
        await world.streams.close()
        return world

    ready = {who: when for when, who, state in run(main()).said if state == "ready"}
    assert ready == {"quick": 11, "slow1": 500, "slow2": 500}


def test_one_that_fails_is_begun_again_with_growing_pauses_and_no_other_notices() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        if asked.publisher == "bad":
            raise Unavailable("cannot listen on 127.0.0.1")
        return await well(world, asked, stop, ready)

    async def main() -> World:
        world = World(script, restart_first=0.1, restart_last=1.0)
        world.serve("bad", "good")
        await asyncio.sleep(5)
        await world.streams.close()
        return world

    world = run(main())
    assert [when for when, who in world.begun if who == "bad"] == [0, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5, 4.5]
    assert world.states("good") == ["ready", "stopped"]
    assert {*world.reasons} == {"cannot listen on 127.0.0.1"}
    assert world.states("bad") == ["failed"] * 8 + ["stopped"]


def test_pauses_are_short_again_after_a_while_of_being_served_and_not_after_a_long_start() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        if asked.publisher == "slow":
            await asyncio.sleep(100)
            raise Unavailable("the catalog is away")
        ready({})
        await asyncio.sleep(20)
        return Ended(EXIT_FAILED, "the log cannot be written")

    async def main() -> World:
        world = World(script, restart_first=1.0, restart_last=8.0, restart_reset=10.0)
        world.serve("slow", "served")
        await asyncio.sleep(320)
        await world.streams.close()
        return world

    begun = run(main()).begun
    assert [when for when, who in begun if who == "slow"] == [0, 101, 203, 307]
    served = [when for when, who in begun if who == "served"]
    assert served[:4] == [0, 21, 42, 63]


@pytest.mark.rule("E12")
def test_a_superseded_stream_ends_alone_and_says_why() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        ready({})
        if asked.publisher == "old" and len([who for _, who in world.begun if who == "old"]) == 1:
            await asyncio.sleep(5)
            return Ended(EXIT_SUPERSEDED, "a newer publisher has registered")
        await stop.wait()
        return Ended(0, "")

    async def main() -> World:
        world = World(script)
        world.serve("old", "other")
        await asyncio.sleep(10)
        await world.streams.close()
        return world

    world = run(main())
    assert world.states("old") == ["ready", "failed", "ready", "stopped"]
    assert world.states("other") == ["ready", "stopped"]
    assert world.reasons == ["a newer publisher has registered"]


def test_a_deleted_stream_is_not_begun_again_and_waits_to_be_stopped() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        ready({})
        return Ended(0, "the stream was deleted")

    async def main() -> World:
        world = World(script)
        world.serve("gone")
        await asyncio.sleep(100)
        world.stop("gone")
        await asyncio.sleep(0.1)
        assert world.states("gone") == ["ready", "stopped"]
        await world.streams.close()
        return world

    assert len(run(main()).begun) == 1


@pytest.mark.rule("E12")
def test_a_namesake_begins_when_the_one_before_has_stopped() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        ready({})
        await stop.wait()
        await asyncio.sleep(3)  # in order
        return Ended(0, "")

    async def main() -> World:
        world = World(script)
        world.serve("p", "p")  # again: it goes on
        await asyncio.sleep(1)
        world.stop("p")
        world.serve("p")
        await asyncio.sleep(10)
        await world.streams.close()
        return world

    world = run(main())
    assert (world.most, [when for when, _ in world.begun]) == (1, [0, 4])
    assert world.states("p") == ["ready", "stopped", "ready", "stopped"]


@pytest.mark.rule("E12")
def test_a_stream_made_again_under_its_name_begins_once_when_the_one_before_has_stopped() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        if asked.uid == "old" and len(world.begun) == 2:
            raise StreamGone("created again")  # it had failed, and finds another stream
        ready({})
        if asked.uid == "old":
            await asyncio.sleep(1)
            return Ended(EXIT_FAILED, "the log cannot be written")
        await stop.wait()
        return Ended(0, "")

    async def main() -> World:
        world = World(script)
        for uid in ("old", "new"):
            world.streams.serve(Serve("p", "demo/p", uid, ("0",)))
            await asyncio.sleep(100)
        world.stop("p", "old")
        await asyncio.sleep(1)
        assert world.states("p")[-2:] == ["ready", "stopped"], "what is said of the old one is not of the new one"
        assert world.running == 1
        await world.streams.close()
        return world

    world = run(main())
    assert (world.most, [when for when, _ in world.begun]) == (1, [0, 1.1, 100])


def test_a_few_stop_at_once_and_what_waits_for_its_turn_to_begin_ends_at_once() -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        ready({})
        await stop.wait()
        await asyncio.sleep(1)
        return Ended(0, "")

    async def main() -> tuple[World, float]:
        world = World(script, stops=2)
        world.serve(*(f"p{number}" for number in range(6)))
        await asyncio.sleep(10)
        world.serve("late")
        await world.streams.close()
        return world, asyncio.get_running_loop().time()

    world, ended = run(main())
    assert ended == 13, "three times two, a second each"
    assert "late" not in {who for _, who in world.begun}
    assert world.states("late") == ["stopped"]


def test_a_bug_in_one_stream_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        if asked.publisher == "bad" and len(world.begun) == 1:
            raise ZeroDivisionError("oh")
        return await well(world, asked, stop, ready)

    async def main() -> World:
        world = World(script)
        world.serve("bad", "good")
        await asyncio.sleep(5)
        await world.streams.close()
        return world

    world = run(main())
    assert world.states("bad") == ["failed", "ready", "stopped"]
    assert world.states("good") == ["ready", "stopped"]
    assert "ZeroDivisionError: oh" in caplog.text


async def test_the_settings_of_all_streams_hold_for_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, stop = list[float](), asyncio.Event()

    class Noted(Ticker):
        def __init__(self, interval: float) -> None:
            super().__init__(interval)
            ticks.append(interval)

    monkeypatch.setattr("epochal_publisher.shared.process.Ticker", Noted)
    monkeypatch.setenv("EPOCHAL_PUBLISHER_TICK", "0.25")
    stop.set()
    assert await serve_shared(stop, "http://127.0.0.1:9", None, None) == 0
    assert ticks == [0.25]
    monkeypatch.setenv("EPOCHAL_PUBLISHER_TICK", "25")
    with pytest.raises(ConfigError, match="TICK"):
        await serve_shared(stop, "http://127.0.0.1:9", None, None)


def test_orders() -> None:
    serve = b'{"serve": {"publisher": "demo.a-0", "stream": "demo/a", "uid": "u", "segments": ["0", "1"]}}'
    assert parse(serve) == Serve("demo.a-0", "demo/a", "u", ("0", "1"))
    assert parse(b'{"stop": "demo.a-0", "uid": "u"}') == StopServing("demo.a-0", "u")
    nameless = serve.replace(b'"uid"', b'"id"')
    for wrong in (b"", b"no", b"[]", b'{"serve": {}}', b'{"stop": 1}', b'{"stop": "demo.a-0"}', nameless, b"\xff"):
        with pytest.raises(ConfigError, match="no order"):
            parse(wrong)


def test_nothing_begins_any_more_in_a_process_that_ends() -> None:
    """It would never be told to stop, and the process would never end; the next process is told again."""

    async def script(world: World, asked: Serve, stop: asyncio.Event, ready: Ready) -> Ended:
        ended = await well(world, asked, stop, ready)
        await asyncio.sleep(2)  # to stop
        return ended

    async def main() -> World:
        world = World(script)
        world.serve("first")
        await asyncio.sleep(5)
        closing = asyncio.create_task(world.streams.close())
        await asyncio.sleep(1)
        world.serve("late", "first")
        await closing
        assert asyncio.get_running_loop().time() < 10
        return world

    world = run(main())
    assert [who for _, who in world.begun] == ["first"]
    assert world.said[-1][1:] == ("first", "stopped")
