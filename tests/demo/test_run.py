"""The demo's late subscriber of one airport, over a real relay and a job whose hours are done at once."""

import asyncio
from pathlib import Path

from examples.demo.run import Run, declare
from examples.demo.tally import Join, Sums, check_bytes, check_early, check_late
from examples.demo.view import PlainView
from tests.patience import PATIENCE

import epochal
from epochal.local import LocalMode

MANIFEST = Path(__file__).parents[2] / "examples" / "flights.yaml"
HOURS = [2013010100 + hour for hour in range(24)]
AIRPORTS = ("EWR", "JFK", "LGA")
WITHOUT = HOURS[20]
"""An hour in which nothing leaves JFK."""


class Seen(PlainView):
    """Knows when the late subscriber has joined."""

    def __init__(self) -> None:
        super().__init__()
        self.has_joined = asyncio.Event()

    def joined(self, join: Join) -> None:
        """Count it."""
        self.has_joined.set()


async def publish(client: epochal.Client, stream: str, view: Seen) -> None:
    async with client.writer(stream) as writer:
        for number, hour in enumerate(HOURS):
            for airport in AIRPORTS:
                if (hour, airport) != (WITHOUT, "JFK"):
                    records = [{"origin": airport, "dep_delay": 2}] * 5
                    await writer.append(hour, records, key=airport.encode(), topic=airport.encode())
            if number == 9:
                await view.has_joined.wait()  # in the middle of this hour
            await writer.advance(hour + 1)
        await writer.finish()


async def test_a_late_subscriber_of_one_airport_has_its_sums_and_no_bytes_of_others() -> None:
    view = Seen()
    run = Run(1, view, kills=False, airport="JFK", total=len(HOURS))
    run.truth = {
        hour: {airport: Sums(5, 5, 10) for airport in AIRPORTS if (hour, airport) != (WITHOUT, "JFK")}
        for hour in HOURS
    }  # fmt: skip
    async with LocalMode() as local, epochal.connect(local.url) as client:
        stream = await declare(local.url, MANIFEST.read_text())
        async with (
            client.subscribe(stream, via="direct") as early,
            client.subscribe(stream, partial=True, via="direct") as scout,
            asyncio.timeout(PATIENCE * 2),
        ):
            await early.ready.wait()
            await scout.ready.wait()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run.follow(early, run.early, late=False))
                tasks.create_task(run.watch(client, stream, scout))
                tasks.create_task(publish(client, stream, view))
    assert check_early(run.truth, run.early) == []
    assert check_late(run.truth, run.late, run.join) == []
    assert set(HOURS[10:]) - {WITHOUT} <= run.late.hours.keys() <= set(HOURS[8:]) - {WITHOUT}
    assert run.join is not None
    assert run.join.ways == ("relay:flights",)
    assert {airport for sums in run.late.hours.values() for airport in sums} == {"JFK"}
    assert check_bytes(run.sent, run.everything) == []
