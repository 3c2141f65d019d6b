"""The demo's subscribers as programs of their own, as its pods run them, over a job whose hours are done at once."""

import asyncio
import json
from typing import Any

from examples.demo.follow import replay
from examples.demo.run import Run
from examples.demo.tally import check_early, check_late, truth_of
from examples.demo.view import PlainView
from tests.patience import PATIENCE
from tests.tracing.receiver import receiving

import epochal

FOLLOWER = "import sys; from examples.demo.follow import main; main(sys.argv[1:])"
HOURS = [2013010100 + hour for hour in range(24)]


async def heard(child: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next event that a follower tells."""
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return dict(json.loads(await child.stdout.readline()))


async def test_each_computes_what_was_published_and_the_late_one_joins_within_an_hour(services, monkeypatch) -> None:
    async with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        stream = await computed(services)
        await received.until(f"process {stream}", len(HOURS) + 1)  # every hour by the one, the last by the other too


async def computed(services) -> str:
    stream = await services.stream(segments=3)
    early = await services.run(FOLLOWER, "early", "--stream", stream)
    late = await services.run(FOLLOWER, "late", "--stream", stream, "--hours", str(len(HOURS)))
    assert [await heard(each) for each in (early, late)] == [{"event": "ready"}] * 2
    joined = asyncio.create_task(heard(late))
    async with epochal.connect(services.url) as client, client.writer(stream) as writer:
        for number, hour in enumerate(HOURS):
            for key in (b"EWR", b"JFK"):
                await writer.append(hour, [{"origin": key.decode(), "dep_delay": 2}], key=key)
            await writer.advance(hour + 1)
            if number >= 8:
                # Over at once, but for an hour or two: it joins with one that comes later.
                await asyncio.wait([joined], timeout=5)  # load: then another hour is published
        await writer.finish()
    run = Run(
        1, PlainView(), kills=False, truth=truth_of((hour, key, 1, 1, 2) for hour in HOURS for key in ("EWR", "JFK"))
    )
    replay(await joined, run, run.late)
    for child, tally in ((early, run.early), (late, run.late)):
        assert child.stdout is not None
        while (event := await heard(child))["event"] != "ended":
            replay(event, run, tally)
        assert event["faults"] == []
        assert await child.wait() == 0
    assert check_early(run.truth, run.early) == []
    assert check_late(run.truth, run.late, run.join) == []
    return str(stream)
