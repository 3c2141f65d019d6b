"""What a process keeps of a sidecar between two writers: its connections, and numbers that were asked for ahead."""

import asyncio
import signal
import threading
from typing import Any

import pytest
from tests.conftest import Services
from tests.sidecar.conftest import Start, records, until

import epochal
from epochal.client.catalog.directory import Directory
from epochal.client.sidecar import connections as sidecar_connections
from epochal.client.sidecar import sidecar as client_sidecar
from epochal.client.sidecar.connections import MOST_IDLE, Connections, Use, connections
from epochal.client.sidecar.sidecar import Way
from epochal.client.writer.segment_writer import SegmentWriter
from epochal.errors import ConfigError, WriterClosed, WriterFenced
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.transport.sockets import Socket
from epochal_publisher.sidecar.sessions import Sessions


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Socket]:
    """The connections that writers of this process were given, in order."""
    found: list[Socket] = []
    take = Connections.take

    def recorded(self: Connections, *given: Any) -> Socket:
        found.append(take(self, *given))
        return found[-1]

    monkeypatch.setattr(Connections, "take", recorded)
    return found


# ---- connections ----


async def test_the_next_writer_of_a_process_has_the_connections_of_the_one_before(
    services: Services, start: Start, taken: list[Socket]
) -> None:
    await start()
    stream = await services.stream(segments=2)
    for number in range(3):
        async with epochal.connect(services.url) as client, client.writer(stream) as writer:
            await writer.append(1, [number], key=b"%d" % number)
    assert len(taken) == 9
    assert len(set(map(id, taken))) == 3, "one for questions and one a segment"


async def test_a_loop_in_another_thread_may_have_them(services: Services, start: Start, taken: list[Socket]) -> None:
    """As in a worker of Spark, where each task runs a loop of its own."""
    await start()
    stream = await services.stream()

    async def publish(number: int) -> None:
        async with epochal.connect(services.url) as client, client.writer(stream) as writer:
            assert writer.way is Way.SIDECAR
            await writer.append(1, [number])

    await publish(0)
    thread = threading.Thread(target=lambda: asyncio.run(publish(1)))
    thread.start()
    await asyncio.to_thread(thread.join)
    await publish(2)
    assert len(set(map(id, taken))) == 2
    async with epochal.connect(services.url) as client, client.writer(stream, direct=True) as writer:
        await writer.finish()
        assert await records(client, stream) == [[0, 1, 2]]


async def test_those_of_a_sidecar_that_was_replaced_are_not_used(
    services: Services, start: Start, client: epochal.Client, taken: list[Socket]
) -> None:
    stream = await services.stream()
    for _ in range(2):
        sidecar = await start()
        async with client.writer(stream) as writer:
            await writer.append(1, ["x"])
        sidecar.signal(signal.SIGKILL)
        await sidecar.ended()
    assert len(set(map(id, taken))) == 4


async def test_one_on_which_an_answer_is_owed_is_not_kept(
    services: Services, start: Start, client: epochal.Client, taken: list[Socket]
) -> None:
    """What is asked of a stream without publishers takes long, and its answer may come when another asks."""
    await start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), client.writer("test/none", wait=20):
            pass
    assert [socket.zmq.closed for socket in taken] == [True]


async def test_few_are_kept(start: Start) -> None:
    sidecar = await start()
    kept = connections()
    lent = [kept.take(sidecar.address, Use.APPENDS, lambda _: None, None, lambda: None) for _ in range(MOST_IDLE + 5)]
    for socket in lent:
        kept.give_back(sidecar.address, Use.APPENDS, socket)
    assert sum(socket.zmq.closed for socket in lent) == 5
    asking = kept.take(sidecar.address, Use.QUESTIONS, lambda _: None, None, lambda: None)
    assert asking not in lent, "what may come late on these would be taken for an answer"
    asking.close()
    kept.close()
    assert all(socket.zmq.closed for socket in lent)


async def test_what_has_waited_for_long_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = await start()
    kept = connections()
    monkeypatch.setattr(sidecar_connections, "IDLE", -1.0)
    lent = [kept.take(sidecar.address, Use.APPENDS, lambda _: None, None, lambda: None) for _ in range(3)]
    kept.give_back(sidecar.address, Use.APPENDS, lent[0])
    assert lent[0].zmq.closed
    monkeypatch.setattr(sidecar_connections, "IDLE", 60.0)
    kept.give_back(sidecar.address, Use.APPENDS, lent[1])
    monkeypatch.setattr(sidecar_connections, "IDLE", -1.0)
    kept.take(sidecar.address, Use.APPENDS, lambda _: None, None, lambda: None).close()
    assert lent[1].zmq.closed
    lent[2].close()


class Machine:
    """Stands for a writer's: keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[m.Message] = []

    def receive(self, _segment: str, message: m.Message) -> None:
        self.received.append(message)


class Writer:
    sidecar = object()

    def __init__(self) -> None:
        self.machine = Machine()


@pytest.mark.rule("E6")
async def test_what_comes_late_for_the_previous_writer_reaches_no_one() -> None:
    writer: Any = Writer()
    link: Any = SegmentWriter(writer, "0")
    link._asked = 7
    lost: list[epochal.EpochalError] = []
    link.lose = lost.append
    late, cut = m.Lost("0", "writer_fenced", "a newer session has opened"), m.Cut("unavailable", "the way is broken")

    def say(message: m.Message, *, by_sidecar: bool) -> None:
        ((frame,),) = wire.encode(message)
        link._received([b"", frame] if by_sidecar else [frame])

    say(late, by_sidecar=False)
    say(cut, by_sidecar=True)
    say(m.Refused(6, "no_publisher", "of another"), by_sidecar=True)
    assert (writer.machine.received, lost) == ([], [])
    say(m.Passed(7), by_sidecar=True)
    say(late, by_sidecar=False)
    say(cut, by_sidecar=True)
    assert writer.machine.received == [late]
    assert [error.code for error in lost] == ["unavailable"]


# ---- numbers ahead ----


@pytest.mark.rule("E6")
async def test_a_writer_that_keeps_coming_has_its_number_before_it_asks(
    services: Services, start: Start, client: epochal.Client
) -> None:
    sidecar = await start()
    stream = await services.stream()
    numbers = []
    for number in range(4):
        async with client.writer(stream, "w") as writer:
            await writer.append(number, [number])
            await writer.advance(number + 1)
            numbers.append(writer.session.machine.session)
    assert numbers == sorted(set(numbers))
    assert await sidecar.metric("ahead_total") == 2, "the second showed that it comes back, and it came twice more"
    async with client.writer(stream, "w") as writer:
        await writer.finish()
    assert await records(client, stream) == [[0], [1], [2], [3]]


async def test_one_that_others_open_in_between_has_none(
    services: Services, start: Start, client: epochal.Client
) -> None:
    """A number that nobody uses is a write at the catalog all the same."""
    sidecar = await start()
    stream = await services.stream()
    for _ in range(3):
        for direct in (False, True):
            async with client.writer(stream, "w", direct=direct):
                pass
    assert await sidecar.metric("ahead_total") == 0


async def overtake(client: epochal.Client, stream: str) -> tuple[int, int]:
    """Have a number of writer `w` asked for ahead, and another session open after it; returns that and one before."""

    async def newest() -> int:
        namespace, _, name = stream.partition("/")
        (writer,) = await client.catalog.writers(namespace, name)
        return writer.session

    for _ in range(2):
        async with client.writer(stream, "w") as writer:
            used = writer.session.machine.session
    await until(lambda: _is_above(newest, used))
    async with client.writer(stream, "w", direct=True) as other:
        await other.append(1, ["other"])
        return used, other.session.machine.session


class Caller:
    """Stands for the catalog, at a clock of its own: gives numbers out in order."""

    def __init__(self) -> None:
        self.newest = 0

    async def call(self, _method: str, _path: str, *, params: Any = None) -> tuple[int, Any]:
        if params is not None and int(params["after"]) != self.newest:
            raise WriterFenced("another has opened")
        before, self.newest = self.newest or None, self.newest + 1
        return 201, {"session": self.newest, "uid": "u", "first": before is None, "before": before}


@pytest.mark.parametrize(("pause", "ahead"), [(1.0, 3), (40.0, 0)])
async def test_only_one_that_comes_back_soon_has_a_number_ahead(
    monkeypatch: pytest.MonkeyPatch, pause: float, ahead: int
) -> None:
    now = 100.0
    monkeypatch.setattr("epochal_publisher.sidecar.sessions.monotonic", lambda: now)
    caller: Any = Caller()
    sessions = Sessions(caller)
    for _ in range(5):
        given = await sessions.give("/v1/streams/a/b", "w")
        sessions.left("/v1/streams/a/b", "w", given["session"])
        await asyncio.sleep(0)
        now += pause
    assert sessions.ahead == ahead
    assert caller.newest == 5 + (1 if ahead else 0), "none that nobody used but the last"
    await sessions.close()


@pytest.mark.rule("E6")
async def test_a_number_that_was_asked_for_ahead_long_ago_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another may have opened and left since: the old number would fence nobody, and be fenced by it."""
    now = 100.0
    monkeypatch.setattr("epochal_publisher.sidecar.sessions.monotonic", lambda: now)
    caller: Any = Caller()
    sessions = Sessions(caller)
    for _ in range(3):
        given = await sessions.give("/v1/streams/a/b", "w")
        sessions.left("/v1/streams/a/b", "w", given["session"])
        await asyncio.sleep(0)
    assert (sessions.ahead, caller.newest) == (1, 4), "number 4 waits"
    now += 40.0
    assert await sessions.give("/v1/streams/a/b", "w") == {"session": 5, "uid": "u", "first": False, "before": 4}
    await sessions.close()


@pytest.mark.rule("E6")
async def test_a_number_that_another_session_has_overtaken_is_asked_for_again(
    services: Services, start: Start, client: epochal.Client
) -> None:
    await start()
    stream = await services.stream(segments=2)
    used, overtaking = await overtake(client, stream)
    async with client.writer(stream, "w") as writer:
        assert writer.session.machine.session > overtaking > used
        await writer.append(1, ["ours"])
        await writer.finish()
    assert await records(client, stream) == [["other", "ours"]]


@pytest.mark.rule("E6")
async def test_a_writer_that_stood_still_before_it_opened_does_not_fence_who_opened_meanwhile(
    services: Services, start: Start, client: epochal.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sidecar, "OVERTAKEN_WITHIN", 0.0)
    await start()
    stream = await services.stream()
    await overtake(client, stream)
    with pytest.raises(WriterFenced):
        async with client.writer(stream, "w"):
            pass


async def test_a_client_that_is_closed_while_a_writer_opens_leaves_none_open(
    services: Services, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start()
    stream = await services.stream()
    client = epochal.connect(services.url)
    looked_up = Directory.look_up

    async def close_after(*given: Any) -> Any:
        found = await looked_up(*given)
        await client.close()
        return found

    monkeypatch.setattr("epochal.client.catalog.directory.Directory.look_up", close_after)
    with pytest.raises(WriterClosed, match="client"):
        await client.writer(stream).__aenter__()


async def test_a_writer_that_cannot_encode_leaves_its_connection_to_the_next(
    services: Services, start: Start, taken: list[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the stream's encoding needs a package that is not installed."""
    await start()
    stream = await services.stream()

    def missing(*_: Any) -> None:
        raise ConfigError("a package is missing")

    async with epochal.connect(services.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr("epochal.client.writer.writer.encoder", missing)
            with pytest.raises(ConfigError, match="missing"):
                await client.writer(stream).__aenter__()
        async with client.writer(stream) as writer:
            await writer.append(1, ["x"])
    assert taken[1] is taken[0], "the one for questions"


async def _is_above(newest: Any, number: int) -> bool:
    return await newest() > number
