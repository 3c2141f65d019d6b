"""The sidecar's sockets, when a publisher is lost that has not taken all: real sockets, and no other process."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
import zmq.asyncio
from tests.patience import PATIENCE

from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal_publisher.sidecar.front import PUBLISHER_QUEUE, Front
from epochal_publisher.sidecar.lanes import Lanes, Limits

Context = zmq.asyncio.Context


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    yield context
    context.term()


class Stand:
    """A front with its lanes, a writer, and a publisher that reads only when told to."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.sockets: list[Any] = []
        self.lanes = Lanes("me", Limits())
        self.front = Front(["tcp://127.0.0.1:*"], self.lanes, lambda _peer, _message: None)
        self.front.start()
        self.address = self.front._writers.zmq.getsockopt_string(zmq.LAST_ENDPOINT)
        self.writer = self.connected()

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(0)
        self.front.close()

    def connected(self) -> Any:
        writer = self.context.socket(zmq.DEALER)
        self.sockets.append(writer)
        writer.connect(self.address)
        return writer

    def publisher(self) -> tuple[Any, str]:
        publisher = self.context.socket(zmq.ROUTER)
        self.sockets.append(publisher)
        publisher.rcvhwm = 1
        publisher.linger = 0
        publisher.bind("tcp://127.0.0.1:*")
        address = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        self.lanes.know([address])
        return publisher, address

    async def passes(self, writer: Any, address: str) -> None:
        await writer.send_multipart([b"", *wire.encode(m.Pass(1, "me", address))[0]])
        assert await said(writer) == m.Passed(1)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self.front.tick()
                await asyncio.sleep(0.005)


async def said(writer: Any) -> m.Message:
    """The sidecar's next message to a writer."""
    async with asyncio.timeout(PATIENCE):
        _, *frames = await writer.recv_multipart()
    (message,) = wire.decode(frames)
    return message


@pytest.mark.rule("E1")
async def test_a_publisher_that_is_lost_with_what_waited_for_it_ends_that_writer_and_no_other(context: Context) -> None:
    stand = Stand(context)
    try:
        lost, address = stand.publisher()
        await stand.passes(stand.writer, address)
        sent = 0
        while not stand.lanes.held:  # the publisher reads nothing: what the library takes is limited
            await stand.writer.send_multipart([bytes(240_000)])
            sent += 1
            assert sent < 100 * PUBLISHER_QUEUE
            await asyncio.sleep(0.001)
        lost.close()
        await stand.until(lambda: stand.lanes.count == 0)
        stand.front.tick()
        assert stand.lanes.held == 0
        cut = await said(stand.writer)
        assert isinstance(cut, m.Cut)
        publisher, address = stand.publisher()
        other = stand.connected()
        await stand.writer.send_multipart([b"sent before it knew"])
        await stand.passes(other, address)
        await other.send_multipart([b"hello"])
        async with asyncio.timeout(PATIENCE):
            assert (await publisher.recv_multipart())[1:] == [b"hello"]
        assert stand.front.refused == 0, "a writer that was cut may send until it knows"
        await stand.passes(stand.writer, address)
    finally:
        stand.close()
