"""ZeroMQ without anything around it: what the library and the machine can carry."""

import asyncio
import time

import msgpack
import zmq

from roles.common import RECORD, age, paced, say, stamped, used


def send_batches(address: str, batch: int, messages: int) -> None:
    """PUSH of packed records."""
    records = [RECORD] * batch
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        start, before = time.monotonic(), used()
        for _ in range(messages):
            socket.send(msgpack.packb(records))
        say(start=start, cpu=used() - before)


def receive(address: str, messages: int) -> None:
    """PULL and count."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(address)
        say(ready=True)
        before = used()
        for _ in range(messages):
            socket.recv()
        say(messages=messages, end=time.monotonic(), cpu=used() - before)


async def publish_paced(address: str, rate: int, messages: int, batch: int, subscribers: int) -> None:
    """XPUB of one frame a batch, at a steady rate, once `subscribers` are there; tells the CPU seconds it took."""
    payload = b"C" + bytes(8) + msgpack.packb([RECORD] * batch)
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.bind(address)
        say(ready=True)
        for _ in range(subscribers):
            await asyncio.to_thread(socket.recv)

        async def send(number: int) -> None:
            socket.send(payload)

        before = used()
        await paced(rate, messages, send)
        await asyncio.sleep(0.5)  # the library still sends
        say(cpu=used() - before)


async def send_paced(address: str, rate: int, messages: int) -> None:
    """PUSH of records at a steady rate, each stamped with its moment."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)

        async def send(number: int) -> None:
            socket.send(stamped())

        await paced(rate, messages, send)
        say(done=True)


def pass_on(address: str, onward: str) -> None:
    """PULL and PUSH, until ended: a hop that does nothing else."""
    with zmq.Context() as context, context.socket(zmq.PULL) as source, context.socket(zmq.PUSH) as sink:
        source.bind(address)
        sink.connect(onward)
        say(ready=True)
        while True:
            sink.send(source.recv())


def receive_aged(address: str, messages: int) -> None:
    """The age of every record at its arrival, in seconds."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(address)
        say(ready=True)
        ages = [age(socket.recv()) for _ in range(messages)]
        say(ages=ages)
