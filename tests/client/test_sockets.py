"""ZeroMQ sockets on the loop: everything is read, nobody starves, a lost peer is told."""

import asyncio
import select
import socket as system
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from epochal.client import sockets
from epochal.client.sockets import BURST, Socket, check_libzmq
from epochal.errors import ConfigError


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def pair(context: zmq.Context[zmq.Socket[bytes]], handle, **options) -> tuple[Socket, Socket]:
    """A bound PULL that hands to `handle`, and a PUSH connected to it."""
    reader = Socket(context, zmq.PULL, handle, **options)
    reader.zmq.bind("tcp://127.0.0.1:*")
    writer = Socket(context, zmq.PUSH, lambda _: None)
    writer.zmq.connect(reader.zmq.getsockopt_string(zmq.LAST_ENDPOINT))
    return reader, writer


async def test_everything_is_read_and_others_get_their_turn(context) -> None:
    got: list[int] = []
    done, turns = asyncio.Event(), []

    def handle(frames: list[bytes]) -> None:
        got.append(int(frames[0]))
        if len(got) == 4 * BURST:
            done.set()

    reader, writer = pair(context, handle, on_idle=lambda: turns.append(len(got)))
    for number in range(4 * BURST):
        writer.send([str(number).encode()])
    reader.start()
    async with asyncio.timeout(5):
        await done.wait()
    assert got == list(range(4 * BURST))
    assert max(b - a for a, b in zip([0, *turns], turns, strict=False)) <= BURST, "others had their turn in between"
    for socket in (reader, writer):
        socket.close()


async def test_messages_that_take_long_leave_others_their_turn_too(context, monkeypatch) -> None:
    monkeypatch.setattr(sockets, "BURST_SECONDS", 0.0)
    got: list[bytes] = []
    done, turns = asyncio.Event(), []

    def handle(frames: list[bytes]) -> None:
        got.extend(frames)
        if len(got) == 20:
            done.set()

    reader, writer = pair(context, handle, on_idle=lambda: turns.append(len(got)))
    for _ in range(20):
        writer.send([b"x"])
    reader.start()
    async with asyncio.timeout(5):
        await done.wait()
    assert max(b - a for a, b in zip([0, *turns], turns, strict=False)) == 1
    for socket in (reader, writer):
        socket.close()


async def test_a_paused_socket_reads_nothing(context) -> None:
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()
    reader, writer = pair(context, got.put_nowait)
    reader.start()
    writer.send([b"1", b"x" * 100_000])
    async with asyncio.timeout(5):
        assert await got.get() == [b"1", b"x" * 100_000]
    reader.pause()
    writer.send([b"2"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await got.get()
    reader.resume()
    async with asyncio.timeout(5):
        assert await got.get() == [b"2"]
    for socket in (reader, writer):
        socket.close()
        assert socket.zmq.closed


async def test_what_arrives_while_something_is_sent_is_read(context) -> None:
    """A send takes notice of what has arrived, and the loop is not woken for that again."""
    got: list[bytes] = []
    done = asyncio.Event()

    def handle(frames: list[bytes]) -> None:
        got.append(frames[-1])
        done.set()

    one = Socket(context, zmq.PAIR, handle)
    one.zmq.bind("tcp://127.0.0.1:*")
    with context.socket(zmq.PAIR) as other:
        other.connect(one.zmq.getsockopt_string(zmq.LAST_ENDPOINT))
        one.start()
        await asyncio.sleep(0)  # the look at the beginning has been
        for number in range(20):
            done.clear()
            other.send(b"%d" % number)
            while not select.select([one.zmq.fileno()], [], [], 5)[0]:
                pass  # the loop stands still until it has arrived
            one.send([b"x"])
            async with asyncio.timeout(5):
                await done.wait()
    assert got == [b"%d" % number for number in range(20)]
    one.close()


async def test_nothing_follows_a_look_that_finds_nothing(context) -> None:
    got: list[list[bytes]] = []
    turns: list[int] = []
    reader, writer = pair(context, got.append, on_idle=lambda: turns.append(len(got)))
    reader.start()
    reader.pause()
    reader.resume()
    reader.drain()
    await asyncio.sleep(0)
    assert not turns
    for socket in (reader, writer):
        socket.close()


async def test_a_lost_peer_is_told(context) -> None:
    reader, writer = pair(context, lambda _: None)
    lost = asyncio.Event()
    writer.watch(lost.set)
    writer.start()
    await asyncio.sleep(0.1)
    assert not lost.is_set()
    reader.close()
    async with asyncio.timeout(5):
        await lost.wait()
    writer.close()


async def test_a_peer_that_is_not_there_is_told(context) -> None:
    writer = Socket(context, zmq.DEALER, lambda _: None)
    lost = asyncio.Event()
    writer.watch(lost.set)
    writer.zmq.connect("tcp://127.0.0.1:1")
    writer.start()
    async with asyncio.timeout(5):
        await lost.wait()
    writer.close()


async def test_a_peer_whose_packets_are_swallowed_is_told(context, monkeypatch) -> None:
    """Its queue of connections is full, so that the system drops the packets of new ones, as a broken network does."""
    monkeypatch.setattr(sockets, "CONNECT_MS", 200)
    with system.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as held:
        for _ in range(4):
            filler = held.enter_context(system.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        lost = asyncio.Event()
        connecting = Socket(context, zmq.DEALER, lambda _: None)
        connecting.watch(lost.set)
        connecting.zmq.connect(f"tcp://127.0.0.1:{full.getsockname()[1]}")
        connecting.start()
        try:
            await asyncio.wait_for(lost.wait(), 20)
        finally:
            connecting.close()


async def test_a_message_above_the_limit_cuts_the_connection(context) -> None:
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()
    reader, writer = pair(context, got.put_nowait, max_message=1000)
    lost = asyncio.Event()
    writer.watch(lost.set)
    for socket in (reader, writer):
        socket.start()
    writer.send([b"x" * 1001])
    async with asyncio.timeout(5):
        await lost.wait()
    assert got.empty()
    for socket in (reader, writer):
        socket.close()


def test_an_old_libzmq_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_libzmq()
    monkeypatch.setattr(sockets, "LEAST_LIBZMQ", (99, 0, 0))
    with pytest.raises(ConfigError, match=r"99\.0\.0"):
        check_libzmq()


async def test_a_socket_whose_context_has_ended_is_closed_without_an_error() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = Socket(context, zmq.DEALER, lambda frames: None)
    socket.watch(lambda: None)
    socket.start()
    context.destroy(linger=0)
    socket.close()
    socket.close()
