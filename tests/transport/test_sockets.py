"""ZeroMQ sockets on the loop: everything is read, nobody starves, a lost peer is told."""

import asyncio
import select
import socket as system
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq
from tests.patience import PATIENCE

from epochal.errors import ConfigError
from epochal.transport import sockets
from epochal.transport.sockets import BURST, Socket, check_libzmq

NUMBERED = """
import asyncio, zmq
from epochal.transport import sockets

async def main():
    sockets.HANDSHAKE_MS = sockets.CONNECT_MS = 30_000
    context, peers = zmq.Context(), asyncio.Queue()
    router = sockets.Socket(context, zmq.ROUTER, peers.put_nowait)
    port = router.zmq.bind_to_random_port("tcp://127.0.0.1")
    dealer = sockets.Socket(context, zmq.DEALER, lambda _: None)
    dealer.connect(f"tcp://127.0.0.1:{port}", lambda: None)
    dealer.send([b"here"])
    router.start()
    print((await peers.get())[0].hex())
    for socket in (router, dealer):
        socket.close()
    context.destroy(linger=0)

asyncio.run(main())
"""
PEER = """
import sys, zmq
socket = zmq.Context().socket(zmq.XPUB if sys.argv[1] == "SUB" else zmq.ROUTER)
socket.sndhwm = 0
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
heard = socket.recv_multipart()
first = [b""] if sys.argv[1] == "SUB" else heard[:1]
for _ in range(5000):
    socket.send_multipart([*first, b"x" * 100])
print("sent", flush=True)
sys.stdin.read()  # until it is killed, or its parent has ended
"""
BUSY = """
import asyncio, subprocess, sys, time, zmq
from epochal.transport import sockets

async def main():
    sockets.HEARTBEAT_MS = 50
    sockets.HANDSHAKE_MS = sockets.CONNECT_MS = 30_000
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], **pipes) as peer:
        read = []
        context = zmq.Context()
        socket = sockets.Socket(context, getattr(zmq, sys.argv[2]), read.append)
        if sys.argv[2] == "SUB":
            socket.zmq.subscribe(b"")
        socket.connect("tcp://127.0.0.1:" + peer.stdout.readline().strip(), lambda: None)
        if sys.argv[2] != "SUB":
            socket.send([b"here"])
        assert peer.stdout.readline() == "sent\\n"
        assert socket.zmq.poll(30_000), "the peer sends from a thread of its own"
        time.sleep(0.5)  # busy: the queue fills
        peer.kill()
        peer.wait()
        time.sleep(1.0)  # still busy, for many heartbeats, and so is the loop
    socket.start()
    while not read or socket._has_message():
        await asyncio.sleep(0.05)
    print(len(read))
    socket.close()
    context.destroy(linger=0)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here connects again, so that a busy machine must not make a connection late."""
    monkeypatch.setattr(sockets, "HANDSHAKE_MS", 30_000)
    monkeypatch.setattr(sockets, "CONNECT_MS", 30_000)


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
    async with asyncio.timeout(PATIENCE):
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
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    assert max(b - a for a, b in zip([0, *turns], turns, strict=False)) == 1
    for socket in (reader, writer):
        socket.close()


async def test_a_paused_socket_reads_nothing(context) -> None:
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()
    reader, writer = pair(context, got.put_nowait)
    reader.start()
    writer.send([b"1", b"x" * 100_000])
    async with asyncio.timeout(PATIENCE):
        assert await got.get() == [b"1", b"x" * 100_000]
    reader.pause()
    writer.send([b"2"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await got.get()
    reader.resume()
    async with asyncio.timeout(PATIENCE):
        assert await got.get() == [b"2"]
    for socket in (reader, writer):
        socket.close()
        assert socket.zmq.closed


async def test_a_paused_socket_costs_nothing(context) -> None:
    class Counted(Socket):
        looks = 0

        def _drain(self) -> None:
            self.looks += 1
            super()._drain()

    reader, writer = Counted(context, zmq.PULL, lambda _: None), Socket(context, zmq.PUSH, lambda _: None)
    reader.zmq.bind("tcp://127.0.0.1:*")
    writer.zmq.connect(reader.zmq.getsockopt_string(zmq.LAST_ENDPOINT))
    reader.start()
    reader.pause()
    await asyncio.sleep(0)
    before = reader.looks
    writer.send([b"1"])
    assert await asyncio.to_thread(reader.zmq.poll, 5000)
    for _ in range(100):
        await asyncio.sleep(0)
    assert reader.looks == before
    for socket in (reader, writer):
        socket.close()


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
            async with asyncio.timeout(PATIENCE):
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


async def test_a_lost_peer_is_reported(context) -> None:
    reader, writer = pair(context, lambda _: None)
    lost = asyncio.Event()
    writer.watch(lost.set)
    writer.start()
    await asyncio.sleep(0.1)
    assert not lost.is_set()
    reader.close()
    async with asyncio.timeout(PATIENCE):
        await lost.wait()
    writer.close()


async def test_a_peer_that_is_not_there_is_reported(context) -> None:
    writer = Socket(context, zmq.DEALER, lambda _: None)
    lost = asyncio.Event()
    writer.watch(lost.set)
    writer.zmq.connect("tcp://127.0.0.1:1")
    writer.start()
    async with asyncio.timeout(PATIENCE):
        await lost.wait()
    writer.close()


async def test_a_peer_whose_packets_are_swallowed_is_reported(context, monkeypatch) -> None:
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
            await asyncio.wait_for(lost.wait(), PATIENCE)
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
    async with asyncio.timeout(PATIENCE):
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


@pytest.mark.rule("S19")
@pytest.mark.parametrize("kind", ["SUB", "DEALER"])
def test_a_busy_program_outlives_the_death_of_its_peer(kind: str) -> None:
    """The library ended it: a heartbeat was due on a connection that broke while its queue here was full."""
    ended = subprocess.run([sys.executable, "-c", BUSY, PEER, kind], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0


def test_how_a_router_numbers_its_peers_cannot_be_known() -> None:
    """The library numbered them alike in every process, and aborts where a peer claims the next number."""
    numbers = [
        subprocess.run(
            [sys.executable, "-c", NUMBERED], capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
        for _ in range(2)
    ]
    assert numbers[0] != numbers[1]
