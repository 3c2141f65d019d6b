"""Whole epochs over HTTP as JSON lines: what an answer has, how one goes on, how long it waits."""

import asyncio
import json
import re
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.publisher.relaying import relaying

import epochal
from epochal.protocol.subscriber.cursor import Cursor

TWO: dict[str, Any] = {"payload": {"encoding": "json"}, "segments": 2}
KEYS = (b"a", b"b", b"c", b"d")
"""Of both segments."""


async def publish(writer: epochal.Writer, time: int, *records: Any, topic: bytes = b"") -> None:
    """An epoch with these records in each segment, and the move past it."""
    for key in KEYS:
        await writer.append(time, list(records), key=key, topic=topic)
    await writer.advance(time + 1)


def whole(lines: list[dict[str, Any]]) -> list[tuple[Any, list[Any]]]:
    """(time, records) of each epoch; raises if the parts of one are not together."""
    found: list[tuple[Any, list[Any]]] = []
    parts: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "part":
            parts.append(line)
        elif line["kind"] == "epoch":
            assert len(parts) == line.get("parts", 0)
            assert {part["time"] for part in parts} <= {line["time"]}
            batches = [batch for each in (*parts, line) for batch in each["batches"]]
            found.append((line["time"], [record for batch in batches for record in batch["records"]]))
            parts = []
    return found


@pytest.mark.rule("E15", "E18", "F18")
async def test_an_answer_has_whole_epochs_of_all_segments_and_the_cursor_after_each(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name, clock=True) as writer:
        await writer.append(0, [{"n": 1}], key=b"a", topic=b"gate/JFK", headers={b"h": b"v"})
        await writer.append(0, [{"n": 2}], key=b"b", topic=b"\xff")
        await writer.append(1, [{"n": 3}], key=b"a")
        await writer.advance(1)
        epoch, frontier = await relay.lines(since="start", wait="20")
        assert (epoch["kind"], epoch["time"], list(epoch)) == ("epoch", 0, ["kind", "time", "batches", "cursor"])
        one, two = sorted(epoch["batches"], key=lambda batch: batch["key"])
        assert {one["segment"], two["segment"]} == {"0", "1"}
        assert (one["topic"], one["records"], one["headers"]) == ("gate/JFK", [{"n": 1}], {"h": "v"})
        assert (two["topic"], two["topic_encoding"], one["published"] > 0) == ("/w==", "base64", True)
        assert (frontier["kind"], frontier["frontier"]) == ("frontier", [1])
        await writer.advance(2)
        again = await relay.lines(since=epoch["cursor"], wait="20")
        assert whole(again) == [(1, [{"n": 3}])]
        status, by_id = await relay.ask({}, Last_Event_ID=frontier["cursor"])
        assert (status, whole(by_id)) == (200, whole(again))


@pytest.mark.rule("F18")
async def test_nothing_is_missed_and_nothing_comes_twice_from_answer_to_answer(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        (now,) = await relay.lines()
        found: list[Any] = []
        cursor = now["cursor"]
        for time in range(0, 12, 3):
            for each in range(time, time + 3):
                await publish(writer, each, each)
            while len(found) < time + 3:
                lines = await relay.lines(since=cursor, wait="20")
                found += whole(lines)
                cursor = lines[0]["cursor"] if time % 2 else lines[-1]["cursor"]
                found = found[: len(found) - len(whole(lines)) + 1] if time % 2 else found
        assert found == [(time, [time] * 4) for time in range(12)]
        assert relay.opened == [None], "all answers come from the ring"


async def test_an_answer_waits_for_the_first_epoch_and_no_longer_than_it_may(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, max_wait=20.0) as relay, relay.client.writer(stream.name) as writer:
        (now,) = await relay.lines(wait="0.05")
        assert (now["kind"], now["frontier"]) == ("frontier", [0])
        asked = asyncio.create_task(relay.lines(since=now["cursor"], wait="20"))
        while not len(relay.readers.places):  # noqa: ASYNC110  # nobody announces it
            await asyncio.sleep(0.01)
        await publish(writer, 0, "x")
        assert whole(await asked) == [(0, ["x"] * 4)]


@pytest.mark.rule("E2", "E17")
async def test_an_aborted_epoch_is_named_once(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        await writer.append(0, ["half"], key=b"a")
        await writer.abort(0)
        await publish(writer, 1, "x")
        lines = await relay.lines(since="start", wait="20")
        assert [line["kind"] for line in lines] == ["aborted", "epoch", "frontier"]
        assert (lines[0]["time"], lines[0]["cursor"] < "~") == (0, True)
        assert [line["kind"] for line in await relay.lines(since=lines[0]["cursor"])] == ["epoch", "frontier"]


@pytest.mark.rule("E18", "F18")
async def test_a_large_epoch_comes_in_parts_that_have_no_cursor(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        for n in range(8):
            await writer.append(0, [str(n) * 200_000, n], key=KEYS[n % 4])
        await writer.append(1, ["small"])
        await writer.advance(2)
        lines = await relay.lines(since="start", wait="20")
        assert [line["kind"] for line in lines] == ["part", "epoch", "frontier"], "an answer ends at its bound"
        assert ["cursor" in line for line in lines] == [False, True, True]
        ((time, records),) = whole(lines)
        assert (time, sorted(map(str, records))) == (0, sorted(str(n) * k for n in range(8) for k in (200_000, 1)))
        assert whole(await relay.lines(since=lines[-1]["cursor"], wait="20")) == [(1, ["small"])]


@pytest.mark.rule("E18")
async def test_after_the_end_of_the_stream_there_is_nothing_more(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay:
        async with relay.client.writer(stream.name) as writer:
            await publish(writer, 0, "x")
            await writer.finish()
        lines = await relay.lines(since="start", wait="20")
        assert [line["kind"] for line in lines] == ["epoch", "complete"]
        assert await relay.ask({"since": lines[-1]["cursor"]}) == (204, None)
        assert await relay.ask({"since": lines[0]["cursor"]}) == (204, None)
        assert [line["kind"] for line in await relay.lines()] == ["complete"]


async def test_a_time_and_topics_say_what_is_wanted(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        for time in range(4):
            for topic in (b"a/1", b"a/2", b"\xff"):
                await writer.append(time, [topic.hex()], topic=topic)
        await writer.advance(4)
        assert [time for time, _ in whole(await relay.lines(since="time:1", wait="20"))] == [2, 3]
        _, lines = await relay.ask([("since", "time:2"), ("topic", "a/"), ("topic", "b"), ("reject", "a/2")])
        assert whole(lines) == [(3, [b"a/1".hex()])]
        async with relay.web.get(relay.url + "/v1/epochs?since=time:2&topic=%FF") as answer:
            assert whole([json.loads(line) for line in (await answer.text()).splitlines()]) == [(3, ["ff"])]
        assert len(relay.readers.feeds) == 3
        await relay.ask([("reject", "a/2"), ("topic", "a/3"), ("topic", "a/"), ("topic", "b")])
        assert len(relay.readers.feeds) == 3, "an equal filter, however it is written"


@pytest.mark.rule("E13")
async def test_history_that_is_gone_is_said_to_be_gone(start: Any) -> None:
    stream, _ = start(**TWO, history={"retention": {"mode": "none"}})
    async with relaying(stream) as relay:
        (now,) = await relay.lines()
        async with relay.client.writer(stream.name) as writer:
            await publish(writer, 0, "x")
            await writer.finish()
        await relay.readers.feeds.close()
    async with relaying(stream) as relay:
        status, problem = await relay.ask({"since": now["cursor"], "wait": "20"})
        assert (status, problem["code"]) == (410, "history_truncated")


OTHERS_CURSOR = Cursor("other", {}, (0,)).to_json()
WRONG: list[tuple[Any, int, str]] = [
    ({"since": "yesterday"}, 422, "since"),
    ({"since": "seq:1"}, 422, "since"),
    ({"since": '{"cursor": 99}'}, 422, "since"),
    ({"since": "time:[1, 2]"}, 422, "since"),
    ({"since": OTHERS_CURSOR}, 422, "since"),
    ({"since": "{" + "x" * 6144}, 413, "since"),
    ({"topic": "x" * 1025}, 422, "topic"),
    ([("reject", str(n) * 900) for n in range(5)], 413, "reject"),
    ({"wait": "-1"}, 422, "wait"),
    ([("wait", "1"), ("wait", "2")], 422, "wait"),
    ({"limit": "1"}, 422, "limit"),
]


async def test_what_is_wrong_with_a_request_is_named(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay:
        for query, expected, field in WRONG:
            status, problem = await relay.ask(query)
            assert (status, [wrong["path"] for wrong in problem["problems"]]) == (expected, [field]), query
        for since, reason in (
            ('{"cursor":5}', "has no field 'stream'"),
            ('{"cursor":4}', "a cursor of form 4; this version reads form 5"),
            ("time:abc", "it is written time:T, with an int"),
        ):
            _, problem = await relay.ask({"since": since})
            (wrong,) = problem["problems"]
            assert reason in wrong["reason"]
            assert not re.search("Error|Expecting", wrong["reason"])
        unwanted = "text/event-stream; Q=0.00, application/json;q=0"
        for accept in ("application/msgpack", "text/event-stream;q=0", unwanted):
            async with asyncio.timeout(PATIENCE):  # server-sent events do not end
                status, problem = await relay.ask(Accept=accept)
            assert (status, problem["code"]) == (406, "not_acceptable")
        status, (line,) = await relay.ask(Accept="text/event-stream;q=0, application/x-ndjson;q=0.1")
        assert (status, line["kind"]) == (200, "frontier")
        status, problem = await relay.ask(Last_Event_ID="17", Accept="text/event-stream")
        assert (status, [wrong["path"] for wrong in problem["problems"]]) == (422, ["Last-Event-ID"])


@pytest.mark.rule("E16", "F18")
async def test_who_has_read_history_goes_on_in_a_ring_that_drops_what_he_was_to_take(start: Any) -> None:
    """Epochs come so fast that the ring drops some while the reader's own subscription is closed."""
    stream, _ = start(**TWO)
    published, over = 0, asyncio.Event()
    async with relaying(stream, ring_bytes=64 * 1024) as relay, relay.client.writer(stream.name) as writer:

        async def publish_on() -> None:
            nonlocal published
            while not over.is_set():
                await writer.append(published, ["x" * 500], key=b"a")
                await writer.advance(published + 1)
                published += 1

        await relay.lines()  # the ring begins
        publishing = asyncio.create_task(publish_on())
        while published < 300:  # noqa: ASYNC110  # the ring is full
            await asyncio.sleep(0.01)
        for _ in range(10):
            begun = published - 60
            times = [time for time, _ in whole(await relay.lines(since=f"time:{begun}", wait="5"))]
            assert times == [*range(begun + 1, begun + 1 + len(times))]
        over.set()
        await publishing


@pytest.mark.rule("F18")
async def test_a_cursor_of_a_long_filter_goes_back_beside_it(start: Any) -> None:
    stream, _ = start(**TWO)
    topics = [("topic", f"region {n:03}/sensor\xff{n:04}") for n in range(110)]
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        _, (last,) = await relay.ask(topics)
        assert len(last["cursor"]) > 5_000
        await publish(writer, 0, "a", topic="region 007/sensor\xff0007".encode())
        status, lines = await relay.ask([*topics, ("since", last["cursor"]), ("wait", "20")])
        assert (status, whole(lines)) == (200, [(0, ["a"] * 4)])
