"""Publishes three hours of delays and reads all hours that the stream retains; run it as often as you like.

epochal apply -f examples/delays.yaml
python examples/delays.py
"""

import asyncio
from contextlib import suppress

import epochal


async def publish() -> int:
    async with epochal.connect() as client, client.writer("demo/delays", writer_id="w1") as writer:
        (first,) = writer.held  # 0 in a new stream; later the hour after those of the last run
        hours = range(first, first + 3)
        for hour in hours:
            with suppress(epochal.EpochAbortedError):  # an earlier run failed in this hour
                await writer.append(hour, [{"delay": 7}, {"delay": -2}], key=b"JFK")
            await writer.advance(hour + 1)  # nothing more at `hour`: it is complete
        return hours[-1]


async def follow(last: int) -> None:
    async with epochal.connect() as client, client.subscribe("demo/delays", since="start") as subscription:
        async for epoch in subscription.epochs():  # in order of time
            if isinstance(epoch, epochal.EpochAborted):
                print(epoch.time, "was aborted")
            else:
                print(epoch.time, sum(record["delay"] for record in epoch.records()))
            if epoch.time == last:
                break


asyncio.run(follow(asyncio.run(publish())))
