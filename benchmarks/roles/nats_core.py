"""Publishers and subscribers of NATS core with nats-py, given the same work as ours."""

import time

import msgpack
import nats

from roles.common import IDLE, RECORD, age, paced, say, stamped, turns, used


async def send_batches(url: str, subject: str, batch: int, messages: int) -> None:
    """Records packed as ours are, a flush now and then."""
    records = [RECORD] * batch
    every = turns(batch)
    connection = await nats.connect(url)
    start, before = time.monotonic(), used()
    for number in range(messages):
        await connection.publish(subject, msgpack.packb(records))
        if number % every == every - 1:
            await connection.flush()
    await connection.flush()
    say(start=start, cpu=used() - before)
    await connection.close()


async def send_singly(url: str, subject: str, records: int) -> None:
    """One record a message, as it is; the client gathers what is pending by itself."""
    every = turns(1)
    connection = await nats.connect(url)
    start, before = time.monotonic(), used()
    for number in range(records):
        await connection.publish(subject, RECORD)
        if number % every == every - 1:
            await connection.flush()
    await connection.flush()
    say(start=start, cpu=used() - before)
    await connection.close()


async def send_paced(url: str, subject: str, rate: int, messages: int) -> None:
    """Records at a steady rate, each stamped with its moment."""
    connection = await nats.connect(url)

    async def send(number: int) -> None:
        await connection.publish(subject, stamped())

    before = used()
    say(begin=True)
    await paced(rate, messages, send)
    await connection.flush()
    say(done=True, cpu=used() - before)
    await connection.close()


async def receive(url: str, subject: str, messages: int) -> None:
    """Counts messages as they arrive; limits are raised so that none is dropped here."""
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject, pending_msgs_limit=10**7, pending_bytes_limit=2**33)
    await connection.flush()
    say(ready=True)
    before = used()
    received, end = 0, 0.0
    try:
        while received < messages:
            await subscription.next_msg(timeout=IDLE)
            received += 1
            end = time.monotonic()
    except nats.errors.TimeoutError:
        pass
    say(messages=received, end=end, cpu=used() - before)
    await connection.close()


async def receive_aged(url: str, subject: str, messages: int) -> None:
    """The age of every record at its arrival, in seconds."""
    ages: list[float] = []
    connection = await nats.connect(url)
    subscription = await connection.subscribe(subject, pending_msgs_limit=10**7, pending_bytes_limit=2**33)
    await connection.flush()
    say(ready=True)
    async for message in subscription.messages:
        ages.append(age(message.data))
        if len(ages) == messages:
            break
    say(ages=ages)
    await connection.close()
