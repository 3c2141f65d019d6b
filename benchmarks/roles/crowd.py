"""Many subscribers in one process: the real join, and then frames that are read and thrown away.

Apart from `ours` because a thousand client objects would be a measure of this process, not of the publisher.
"""

import asyncio
import secrets
import time

import zmq

from epochal.protocol import messages as m
from epochal.protocol import wire
from roles.common import say

_DEADLINE_MS = 30_000


class Subscriber:
    """One subscriber: a DEALER that says hello and a SUB that hears the snapshot."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", requests: str, events: str) -> None:
        self.events = context.socket(zmq.SUB)
        self.requests = context.socket(zmq.DEALER)
        for socket, address in ((self.requests, requests), (self.events, events)):
            socket.linger = 0
            socket.rcvtimeo = _DEADLINE_MS
            socket.connect(address)

    def join(self, stream: str, segment: str, wanted: m.Prefixes | None = None) -> float:
        """Seconds from hello to snapshot; `wanted` topics, None for all."""
        nonce = secrets.token_bytes(16)
        start = time.monotonic()
        for frames in wire.encode(m.Hello(1, (m.VERSION,), stream, segment, nonce, wanted)):
            self.requests.send_multipart(frames)
        (welcome,) = wire.decode(self.requests.recv_multipart())
        assert isinstance(welcome, m.Welcome), welcome
        self.events.subscribe(b"C" + welcome.channel)
        self.events.subscribe(b"P" + nonce)
        while self.events.recv_multipart()[0][:1] != b"P":
            pass  # live events that came before the snapshot
        return time.monotonic() - start


def context(size: int) -> "zmq.Context[zmq.Socket[bytes]]":
    """A place for the sockets of so many subscribers."""
    sockets: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets.max_sockets = 3 * size + 64
    return sockets


def listen(requests: str, events: str, stream: str, segment: str, size: int, expected: int) -> None:
    """Join `size` subscribers and read what comes; tell once all of them together have had `expected` bytes."""
    sockets = context(size)
    crowd = [Subscriber(sockets, requests, events) for _ in range(size)]
    for one in crowd:
        one.join(stream, segment)
    say(ready=True)
    read([one.events for one in crowd], expected)


def stall(requests: str, events: str, stream: str, segment: str, size: int) -> None:
    """Join `size` subscribers, and never read."""
    sockets = context(size)
    crowd = [Subscriber(sockets, requests, events) for _ in range(size)]
    for one in crowd:
        one.join(stream, segment)
    say(ready=True)
    time.sleep(_DEADLINE_MS)


def listen_bare(address: str, size: int, expected: int) -> None:
    """The same without a join: `size` SUB sockets on a bare XPUB."""
    sockets = context(size)
    crowd = []
    for _ in range(size):
        socket = sockets.socket(zmq.SUB)
        socket.subscribe(b"C" + bytes(8))
        socket.connect(address)
        crowd.append(socket)
    read(crowd, expected)


def read(sockets: "list[zmq.Socket[bytes]]", expected: int) -> None:
    """Read what comes, and throw it away; tell once all together have had `expected` bytes."""
    poller, received = zmq.Poller(), 0
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            try:
                while True:
                    received += len(socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                pass
        if 0 < expected <= received:
            say(received=received)
            expected = 0


async def join_one_by_one(requests: str, events: str, stream: str, segment: str, joins: int) -> None:
    """How long each of `joins` newcomers waits, in seconds; each leaves again."""
    sockets = context(joins)
    waited = []
    for _ in range(joins):
        one = Subscriber(sockets, requests, events)
        waited.append(one.join(stream, segment))
        one.events.close()
        one.requests.close()
        await asyncio.sleep(0)
    say(waited=waited)
