"""Whole epochs over HTTP as server-sent events: each once, through reconnects by id, at the pace of each reader."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.publisher.relaying import Event, relaying
from tests.publisher.test_epochs_http import KEYS, TWO, publish, whole

import epochal


def cursor_of(event: Event) -> str:
    assert event.id is not None
    return event.id


async def of_kind(events: AsyncIterator[Event], *kinds: str) -> Event:
    """The next event of one of these kinds."""
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if event.kind in kinds:
                return event
    raise AssertionError(f"it ended without {kinds}")


@pytest.mark.rule("F18", "E16")
async def test_the_id_of_an_epoch_is_the_cursor_after_it(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events:
            first = await of_kind(events, "frontier")
            assert first.data == {"kind": "frontier", "frontier": [0]}
            await publish(writer, 0, "a")
            await publish(writer, 1, "b")
            epochs = [await of_kind(events, "epoch") for _ in range(2)]
            assert whole([epoch.data for epoch in epochs]) == [(0, ["a"] * 4), (1, ["b"] * 4)]
            assert all("cursor" not in epoch.data for epoch in epochs)
        async with relay.events(last=cursor_of(epochs[0]), since="start") as events:
            again = await of_kind(events, "epoch")
            assert (again.data, again.id) == (epochs[1].data, epochs[1].id)
        async with relay.events(last=cursor_of(first)) as events:
            assert [(await of_kind(events, "epoch")).id for _ in range(2)] == [epoch.id for epoch in epochs]
        assert relay.opened == [None], "who comes back by his id follows what is kept"
        async with relay.client.subscribe(stream.name, since=epochal.Cursor.from_json(cursor_of(epochs[0]))) as sub:
            async for epoch in sub.epochs():
                assert epoch.time == 1
                break


@pytest.mark.rule("F18")
async def test_who_begins_now_has_an_id_before_anything_is_published(start: Any) -> None:
    """Else one who is lost before the first epoch would begin again where he comes back, and miss it."""
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events:
            await publish(writer, 0, "a")
            first = await anext(events)
            assert first.kind == "frontier"
        async with relay.events(last=cursor_of(first)) as events:
            assert (await of_kind(events, "epoch")).data["time"] == 0


@pytest.mark.rule("F18", "E18")
async def test_a_reader_who_loses_his_connection_within_an_epoch_has_none_of_it(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events:
            began = await of_kind(events, "frontier")
            for n in range(12):
                await writer.append(0, ["x" * 200_000 + str(n)], key=KEYS[n % 4])
            await writer.advance(1)
            part = await of_kind(events, "part", "epoch")
            assert (part.kind, part.id, set(part.data)) == ("part", None, {"kind", "time", "batches"})
        async with relay.events(last=cursor_of(began)) as events:
            got = [event.data async for event in until(events, "epoch")]
            ((time, records),) = whole(got)
            assert (time, sorted(int(record.lstrip("x")) for record in records)) == (0, list(range(12)))


async def until(events: AsyncIterator[Event], kind: str) -> AsyncIterator[Event]:
    async for event in events:
        if event.kind:
            yield event
        if event.kind == kind:
            return


@pytest.mark.rule("E16", "F18")
@pytest.mark.parametrize("since", ["start", "now"])
async def test_however_often_a_reader_comes_back_he_has_each_epoch_once(start: Any, since: str) -> None:
    """With a ring that keeps one epoch: he reads history when he was away."""
    stream, _ = start(**TWO)
    async with relaying(stream, ring_bytes=64 * 1024) as relay, relay.client.writer(stream.name) as writer:
        last, found, published = "", list[Any](), 0
        async with relay.events(since=since) as events:
            if since == "now":
                last = cursor_of(await of_kind(events, "frontier"))
        while published < 40:
            for _ in range(8):
                await publish(writer, published, "x" * 4_000, published)
                published += 1
            async with relay.events(last=last, since=since) as events:
                for _ in range(5):
                    event = await of_kind(events, "epoch")
                    last = cursor_of(event)
                    found += whole([event.data])
        async with relay.events(last=last) as events:
            while len(found) < published:
                found += whole([(await of_kind(events, "epoch")).data])
        assert [(time, set(records)) for time, records in found] == [(n, {"x" * 4_000, n}) for n in range(40)]
        assert len(relay.opened) > 2, "he had to read history"
        assert len(relay.readers.catch_ups) == 0


@pytest.mark.rule("E18")
async def test_after_complete_a_browser_does_not_come_back(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events(since="start") as events:
            await publish(writer, 0, "x")
            await writer.finish()
            kinds = [event.kind async for event in events]
            assert [kind for kind in kinds if kind != "frontier"] == ["epoch", "complete"]
        async with relay.events(since="start") as events:
            complete = await of_kind(events, "complete")
        assert await relay.ask(Accept="text/event-stream", Last_Event_ID=cursor_of(complete)) == (204, None)


async def test_a_quiet_answer_shows_that_it_is_still_there(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, sse_heartbeat=0.05) as relay, relay.events() as events:
        assert [(await anext(events)).kind for _ in range(3)] == ["frontier", "", ""]


@pytest.mark.rule("E18")
async def test_a_reader_that_does_not_read_holds_up_no_one_and_comes_back_by_its_id(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream, ring_bytes=2**20, write_timeout=300.0) as relay, relay.client.writer(stream.name) as w:
        async with relay.events() as first:
            began = cursor_of(await of_kind(first, "frontier"))
        with socket.create_connection(("127.0.0.1", relay.http.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            head = "GET /v1/epochs HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            head += f"Last-Event-ID: {began}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(slow, head.encode())
            async with relay.events(last=began) as events:
                for time in range(30):
                    await publish(w, time, "x" * 100_000)
                    ((found, _),) = whole(
                        [event.data async for event in until(events, "epoch") if event.kind != "frontier"]
                    )
                    assert found == time
            assert relay.readers.feeds.rings.bytes <= 2**20
        async with relay.events(last=began) as events:
            times = [(await of_kind(events, "epoch")).data["time"] for _ in range(30)]
            assert times == list(range(30))


@pytest.mark.rule("E18")
async def test_a_stop_ends_all_answers_and_readers_come_back_by_their_ids(start: Any) -> None:
    stream, _ = start(**TWO)
    async with relaying(stream) as relay, relay.client.writer(stream.name) as writer:
        async with relay.events() as events:
            last = cursor_of(await of_kind(events, "frontier"))
            asked = asyncio.create_task(relay.ask({"wait": "50", "since": last}))
            while len(relay.readers.places) < 2:  # noqa: ASYNC110  # nobody announces it
                await asyncio.sleep(0.01)
            await relay.http._close()
            assert [event.kind async for event in events if event.kind] == []
            status, problem = await asked
            assert (status, problem["code"]) == (503, "shutting_down")
        await publish(writer, 0, "x")
        async with relaying(stream) as other, other.events(last=last) as events:
            assert whole([(await of_kind(events, "epoch")).data]) == [(0, ["x"] * 4)]


@pytest.mark.rule("E48")
async def test_a_stream_that_is_deleted_is_said_to_be_gone(start: Any) -> None:
    stream, publisher = start(**TWO)
    async with relaying(stream) as relay, relay.events() as events:
        await of_kind(events, "frontier")
        await asyncio.to_thread(stream.delete)
        await asyncio.to_thread(publisher.stop)
        refused = await of_kind(events, "refused")
        assert (refused.data["status"], refused.data["code"]) == (410, "stream_gone")


@pytest.mark.rule("E17")
async def test_what_a_publisher_has_lost_is_reported(start: Any) -> None:
    stream, publisher = start(**TWO)
    async with relaying(stream) as relay, relay.events() as events:
        await of_kind(events, "frontier")
        writer = relay.client.writer(stream.name)
        await writer.__aenter__()
        await writer.append(0, ["lost"], key=b"a")
        await asyncio.to_thread(publisher.stop)
        again = await asyncio.to_thread(stream.start, "0,1")
        try:
            gap = await of_kind(events, "gap")
            assert (gap.id, gap.data["segment"] in "01", gap.data["incarnation"]) == (None, True, 2)
            with suppress(epochal.EpochalError):
                await writer.__aexit__(None, None, None)
        finally:
            await asyncio.to_thread(again.stop)
