"""What only a publisher within the test can show: which threads do what, and what happens between two awaits."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import pytest
from aiohttp import web
from tests.patience import PATIENCE

from epochal.catalog_api.answers import Registration, Renewal, SegmentGrant, StreamInfo
from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal_publisher.errors import SubscriptionUsed
from epochal_publisher.http.webhooks import Webhooks
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.follower import HistoryFollower, NamedPlace
from epochal_publisher.segments.lease import PublisherLease
from epochal_publisher.segments.store import SegmentStores
from epochal_publisher.serving import _until_over
from epochal_publisher.settings import Settings

MANIFEST: dict[str, Any] = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": {"name": "s", "namespace": "test"},
    "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
}
SETTINGS = Settings.read(
    catalog="http://127.0.0.1:9",
    stream="test/s",
    segments="0",
    publisher="p",
    webhook_targets="127.0.0.0/8",
    stall=30.0,
)


@asynccontextmanager
async def serving(*segments: str, **progress: Any) -> AsyncIterator[PublisherProcess]:
    """A publisher of segment 0 or of those given, whose catalog answers when the test says so.

    `progress` as a stream declares it.
    """
    spec = {**MANIFEST["spec"], "progress": {"writerTimeout": "1s", **progress}}
    stream = StreamInfo("test", "s", "u", 1, "Ready", {**MANIFEST, "spec": spec})
    async with PublisherLease(SETTINGS) as lease:
        made = PublisherProcess(SETTINGS, lease)
        async with SegmentStores(SETTINGS, stream, lease.instance) as stores:
            grants = tuple(SegmentGrant(segment, 1, 0, 2**64) for segment in segments or ("0",))
            await made.serve(stream, Registration(1, 10.0, grants), stores)
            yield made
        made.close()


@pytest.fixture
async def publisher() -> AsyncIterator[PublisherProcess]:
    async with serving() as made:
        yield made


def renew(publisher: PublisherProcess, **released: int) -> None:
    """The catalog has stored what is reported, and says so; it was told to release these sessions of writers."""
    recorded = {segment: report.number for segment, report in publisher.reports().items() if report.number is not None}
    publisher.renewed(Renewal(10.0, False, recorded, released))


async def test_answers_are_reported_one_at_a_time_and_hold_up_no_reading(publisher: PublisherProcess) -> None:
    inside, release = threading.Semaphore(0), threading.Event()

    def takes_long() -> None:
        inside.release()
        release.wait(PATIENCE)

    telling = [asyncio.ensure_future(publisher.encode(takes_long)) for _ in range(8)]
    try:
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*(publisher.read(lambda: 7) for _ in range(20))) == [7] * 20
            assert await asyncio.to_thread(inside.acquire, timeout=PATIENCE)
        assert not inside.acquire(blocking=False), "the others wait"
    finally:
        release.set()
        await asyncio.gather(*telling)


class Waiting(HistoryFollower):
    """A follower whose place is found when the test says so, as one of a disk is."""

    found = asyncio.Event()

    async def open(self, asked: Any) -> Any:
        await self.found.wait()
        return await super().open(asked)


@pytest.mark.rule("Q9")
async def test_of_two_that_ask_for_one_id_at_once_one_is_refused(publisher: PublisherProcess) -> None:
    hooks, served = Webhooks(SETTINGS, publisher), publisher.segments["0"]
    callback = "http://127.0.0.1:9/hook"
    Waiting.found = asyncio.Event()
    both = [
        asyncio.ensure_future(hooks.register("0", Waiting(publisher, served), "one", callback, NamedPlace.NOW))
        for _ in range(2)
    ]
    await asyncio.sleep(0)  # both have found the id free
    Waiting.found.set()
    answers = await asyncio.gather(*both, return_exceptions=True)
    try:
        assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [SubscriptionUsed]
        assert len(hooks) == 1
    finally:
        await hooks.close()


# ---- writers that are not read: E8 ----


@asynccontextmanager
async def keeping_time(publisher: PublisherProcess) -> AsyncIterator[None]:
    task = asyncio.create_task(publisher.keep_time())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def open_writer(publisher: PublisherProcess, writer: str = "w", segment: str = "0") -> None:
    opens = m.Open(1, "u", segment, writer, 1, None, None)
    publisher.segments[segment].publisher.receive(writer.encode(), opens, monotonic())


def send(publisher: PublisherProcess, number: int, *, at: int, segment: str = "0") -> None:
    """An append of the writer arrives."""
    payload = b"\x91\xc4\x01x"
    append = m.Append(segment, number, at, b"", 1, google_crc32c.value(payload), payload)
    publisher.segments[segment].publisher.receive(b"w", append, monotonic())
    publisher.flush()


async def ticks(publisher: PublisherProcess, seconds: float) -> None:
    """Wait until the segment's machine has lived through so many seconds."""
    machine, until = publisher.segments["0"].server, monotonic() + seconds
    ticked, event = machine.tick, asyncio.Event()

    def noting(now: float, *, beats: bool = True) -> None:
        ticked(now, beats=beats)
        if now > until:
            event.set()

    machine.tick = noting  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE):
        await event.wait()


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("E8")
async def test_while_writers_are_not_read_none_of_them_is_silent(publisher: PublisherProcess) -> None:
    open_writer(publisher)
    async with keeping_time(publisher):
        publisher._ingest.router.socket.pause()  # as a full disk does
        await ticks(publisher, 1.5)
        assert publisher.segments["0"].publisher.writers == ["w"]
        publisher._ingest.router.socket.resume()
        await ticks(publisher, 1.5)
        assert publisher.segments["0"].publisher.writers == [], "it was read, and said nothing"


# ---- what the catalog has recorded, and whom it has released: E11, E46 ----


@pytest.mark.rule("E11")
async def test_an_append_that_waits_is_asked_for_at_once_and_goes_on_when_it_is_recorded(
    publisher: PublisherProcess,
) -> None:
    machine = publisher.segments["0"].publisher
    open_writer(publisher)
    publisher.flush()
    publisher._lease._soon.clear()
    send(publisher, 0, at=5)
    assert publisher._lease._soon.is_set(), "the lease is not renewed at its next time, but now"
    assert (machine.seq, machine.waiting_bytes > 0) == (-1, True)
    renew(publisher)
    assert (machine.seq, machine.waiting_bytes) == (0, 0)


@pytest.mark.rule("E11")
async def test_of_a_process_of_many_segments_only_those_are_reported_at_once_that_wait_for_it() -> None:
    async with serving("0", "1", "2") as publisher:
        open_writer(publisher, segment="1")
        publisher.flush()
        assert publisher.reports(urgent=True).keys() == {"1"}, "an incarnation after this one must know of the writer"
        assert publisher.reports(urgent=True).keys() == set()
        send(publisher, 0, at=5, segment="1")
        assert publisher.reports(urgent=True)["1"].horizon == [5]
        send(publisher, 1, at=6, segment="1")
        assert publisher.reports().keys() == {"0", "1", "2"}
        assert publisher.reports(urgent=True).keys() == set(), "that report was of all"


async def test_a_process_of_many_segments_reports_a_bounded_number_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal_publisher.publisher.MOST_CHANNELS", 5)
    async with serving("0", "1") as publisher:
        for served in publisher.segments.values():
            for number in range(3):
                nonce = number.to_bytes(16, "big")
                topics = ((b"%d" % number,), ())
                served.server.receive(
                    b"s%d" % number, m.Hello(1, (1,), "u", served.publisher.segment, nonce, topics), 0.0
                )
            for channel in served.channels:
                served.channels.hears(channel.token, True)
            for number in range(3):
                served.server.subscribed(number.to_bytes(16, "big"), 0.0)
        assert [len(report.channels) for report in publisher.reports().values()] == [2, 2]


@pytest.mark.rule("E11")
async def test_how_long_appends_have_waited_is_counted_from_what_was_recorded_last() -> None:
    async with serving(writerTimeout="1h") as publisher:
        served, now = publisher.segments["0"], monotonic()

        def waited(seconds: float) -> float:
            served.tick(now + seconds)
            return served.report(now + seconds).counters["waiting_seconds"]

        open_writer(publisher)
        send(publisher, 0, at=5)
        assert [waited(seconds) for seconds in (1.0, 2.5, 4.0)] == [0.0, 1.5, 3.0]
        renew(publisher)
        assert waited(5.0) == 0.0
        send(publisher, 1, at=6)
        asked = publisher.reports()["0"].number
        assert asked is not None
        send(publisher, 2, at=7)
        assert waited(6.0) == 0.0
        served.recorded(served.recorded_number, now)  # no news
        assert waited(9.0) == 3.0
        served.recorded(asked, now)  # 7 waits still, but not in vain
        assert waited(10.0) == 0.0


@pytest.mark.rule("E11")
async def test_an_append_that_waits_is_not_taken_once_the_publisher_stops(publisher: PublisherProcess) -> None:
    """The answer to what was asked before the stop comes after it: the last record would lack what became active."""
    machine = publisher.segments["0"].publisher
    open_writer(publisher)
    send(publisher, 0, at=5)
    asked = publisher.reports()["0"]
    publisher.drain()
    assert asked.number is not None
    publisher.renewed(Renewal(10.0, False, {"0": asked.number}, {}))
    last = publisher.reports(final=True)["0"]
    assert (machine.seq, last.horizon, last.final) == (-1, [], True)
    assert last.number == asked.number + 1


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("E46")
async def test_a_writer_that_the_catalog_has_released_is_held_for_no_longer() -> None:
    async with serving(whenLost="hold") as publisher, keeping_time(publisher):
        open_writer(publisher)
        await ticks(publisher, 1.5)
        machine = publisher.segments["0"].publisher
        assert machine.writers == ["w"]
        renew(publisher, other=1)
        assert machine.writers == ["w"]
        renew(publisher, w=1)
        assert machine.writers == []


# ---- the lease: E12 ----


@asynccontextmanager
async def server(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """An HTTP server in this process; yields its URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.rule("E12")
async def test_a_renewal_that_was_asked_for_before_a_stall_proves_nothing_after_it() -> None:
    asked: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def renew(request: web.Request) -> web.Response:
        may_answer = asyncio.Event()
        asked.put_nowait(may_answer)
        await may_answer.wait()
        return web.json_response({"ttl": 10.0, "complete": False})

    confirmed: asyncio.Queue[int] = asyncio.Queue()
    owner: Any = SimpleNamespace(stalls=0, reports=lambda urgent: {}, confirmed=confirmed.put_nowait, renewed=[].append)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE))
        url = await stack.enter_async_context(server(renew))
        lease = await stack.enter_async_context(PublisherLease(SETTINGS.model_copy(update={"catalog": url})))
        keeping = asyncio.create_task(lease.keep(owner))
        before = await asked.get()
        owner.stalls += 1
        lease.ask_now()
        before.set()
        assert await confirmed.get() == 0
        (await asked.get()).set()
        assert await confirmed.get() == 1
        keeping.cancel()


class Asks:
    """An owner that asks again at each renewal; notes when each was made, and whether it was only what is urgent."""

    stalls = 0

    def __init__(self) -> None:
        self.renewals: asyncio.Queue[tuple[float, bool]] = asyncio.Queue()
        self.over: asyncio.Future[EpochalError] = asyncio.get_running_loop().create_future()

    def reports(self, *, urgent: bool) -> dict[str, Any]:
        self.renewals.put_nowait((monotonic(), urgent))
        self.lease.ask_now()
        return {}

    def confirmed(self, stalls: int) -> None: ...
    def renewed(self, renewal: Renewal) -> None: ...
    def ended(self, error: EpochalError) -> None:
        self.over.set_result(error)

    @asynccontextmanager
    async def kept(self, url: str, **settings: Any) -> AsyncIterator[None]:
        async with (
            asyncio.timeout(PATIENCE),
            PublisherLease(SETTINGS.model_copy(update={"catalog": url, **settings})) as self.lease,
        ):
            keeping = asyncio.create_task(self.lease.keep(cast("Any", self)))
            try:
                yield
            finally:
                keeping.cancel()


async def test_however_often_it_is_asked_a_catalog_that_is_away_is_not_tried_without_a_pause() -> None:
    owner = Asks()
    async with owner.kept("http://127.0.0.1:9"):
        made = [await owner.renewals.get() for _ in range(4)]
    assert all(later[0] - before[0] > 0.15 for before, later in pairwise(made))
    assert [urgent for _, urgent in made] == [False] * 4, "what of it was stored is not known"


async def test_all_is_reported_at_each_interval_however_often_it_is_asked() -> None:
    async def renewed(request: web.Request) -> web.Response:
        return web.json_response({"ttl": 10.0, "complete": False})

    owner = Asks()
    async with server(renewed) as url, owner.kept(url, renew_interval=0.3):
        made = [await owner.renewals.get()]
        while [urgent for _, urgent in made].count(False) < 3:
            made.append(await owner.renewals.get())
    assert sum(urgent for _, urgent in made) > 4
    regular = [at for at, urgent in made if not urgent]
    assert all(later - before >= 0.3 for before, later in pairwise(regular))


@pytest.mark.parametrize(
    ("status", "answer", "expected", "code"),
    [
        (404, {"code": "unknown_publisher", "detail": "who?"}, "does not know this registration any more: who?", 3),
        (409, {"code": "superseded", "detail": "another one"}, "another one", 3),
        (
            422,
            {"code": "invalid_request", "detail": "the report of segment 0 is odd"},
            "segment 0 is odd; this is a bug",
            1,
        ),
        (404, {"not": "a catalog"}, "is the address right?", 1),
    ],
)
async def test_the_reasons_why_a_lease_ends_are_distinguished(
    status: int, answer: dict[str, str], expected: str, code: int, tmp_path: Path
) -> None:
    """Only who was superseded leaves its mark, and only who lost its lease ends with 3."""

    async def refused(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status, content_type="application/problem+json")

    owner, mark = Asks(), tmp_path / "mark"
    async with server(refused) as url, owner.kept(url):
        assert expected in str(await owner.over)
    settings = SETTINGS.model_copy(update={"superseded_mark": mark})
    assert await _until_over(settings, cast("Any", owner), owner.lease, asyncio.Future(), []) == code
    assert mark.exists() == (answer.get("code") == "superseded")


# ---- web-hooks: Q7, Q9 ----


@asynccontextmanager
async def hooked(
    publisher: PublisherProcess, *statuses: int
) -> AsyncIterator[tuple[Webhooks, "asyncio.Queue[list[bytes]]"]]:
    """Web-hooks with one receiver, which answers with `statuses` and then with 204; and what it was sent."""
    answers, came = list(statuses), asyncio.Queue[list[bytes]]()

    async def receive(request: web.Request) -> web.Response:
        came.put_nowait((await request.read()).splitlines())
        return web.Response(status=answers.pop(0) if answers else 204)

    hooks, served = Webhooks(SETTINGS, publisher), publisher.segments["0"]
    async with asyncio.timeout(PATIENCE), server(receive) as url:
        await hooks.register("0", HistoryFollower(publisher, served), "one", f"{url}/hook", NamedPlace.START)
        try:
            yield hooks, came
        finally:
            await hooks.close()


def append(publisher: PublisherProcess, number: int) -> None:
    send(publisher, number, at=0)
    renew(publisher)


@pytest.mark.rule("Q7")
async def test_what_a_receiver_did_not_take_comes_again_before_what_follows(publisher: PublisherProcess) -> None:
    open_writer(publisher)
    async with hooked(publisher, 500) as (_, came):
        append(publisher, 0)
        first = await came.get()
        append(publisher, 1)
        assert await came.get() == first
        assert len(await came.get()) == len(first) == 1


@pytest.mark.rule("Q9")
async def test_who_says_that_it_does_not_know_a_subscription_is_sent_nothing_more(publisher: PublisherProcess) -> None:
    open_writer(publisher)
    async with hooked(publisher, 410) as (hooks, came):
        append(publisher, 0)
        await came.get()
        (hook,) = hooks._live.values()
        assert hook.task is not None
        again = asyncio.ensure_future(came.get())
        done, _ = await asyncio.wait([hook.task, again], return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        assert done == {hook.task}
        assert len(hooks) == 0


async def test_a_publisher_that_is_closed_holds_no_history_any_more() -> None:
    """In a process that goes on with other streams, only a rare collection would free it."""
    async with serving("0", "1") as made:
        assert made.segments.keys() == {"0", "1"}
    assert not made.segments
