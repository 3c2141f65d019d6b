"""Subscribers that join at any moment see every epoch whole or not at all.

Every delivered epoch is compared with what was published.
Writers and subscribers are processes of their own, 200 subscribers in each test.
The test beats time: at each beat every writer publishes one time, and the subscribers that drew it join meanwhile.
So they join at many moments on a slow machine, too.
"""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.patience import PATIENCE

WRITER = """
import asyncio, json, random, sys, epochal
stream, name, times, writers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
def as_time(t): return tuple(t) if isinstance(t, list) else t
def records(time, part): return [f"{time}/{name}/{part}/{n}" for n in range(3)]
async def main():
    rng = random.Random(name)
    async with epochal.connect() as client, client.writer(stream, writer_id=name) as w:
        print("open", flush=True)
        for time, then in times:
            await asyncio.to_thread(sys.stdin.readline)
            time = as_time(time)
            for part in range(6):
                await w.append(time, records(time, part), key=bytes([part]))
                await asyncio.sleep(rng.random() * 0.01)
            if then is not None:
                await w.advance(as_time(then))
            print("published", flush=True)
        await w.finish()
asyncio.run(main())
"""

READERS = """
import asyncio, json, random, sys, epochal
stream, count, beats, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
async def read(client, joined):
    seen = []
    async with client.subscribe(stream) as sub:
        joined.set_result(None)
        async for epoch in sub.epochs():
            assert isinstance(epoch, epochal.Epoch), epoch
            seen.append([epoch.time, sorted(epoch.records())])
    return seen
async def main():
    rng = random.Random(seed)
    drawn = sorted(rng.randrange(beats) for _ in range(count))
    reading = []
    async with epochal.connect() as client:
        await client.catalog.list()
        print("ready", flush=True)
        for beat in range(beats):
            await asyncio.to_thread(sys.stdin.readline)
            joining = [asyncio.get_running_loop().create_future() for _ in range(drawn.count(beat))]
            reading += [asyncio.create_task(read(client, joined)) for joined in joining]
            await asyncio.gather(*joining)
            print("joined", flush=True)
        for seen in await asyncio.gather(*reading):
            print(json.dumps(seen), flush=True)
asyncio.run(main())
"""

PROCESSES, EACH = 2, 100
BEATS = 25
AHEAD = 2
"""How many beats the quickest process may be ahead of the slowest."""


async def watch(services, stream: str, writers: list[str], times: list[tuple[object, object]]) -> list[list[list[Any]]]:
    """What each of 200 subscribers saw while the writers published `times`."""
    publishing = [await services.run(WRITER, stream, name, json.dumps(times), str(len(writers))) for name in writers]
    reading = [await services.run(READERS, stream, str(EACH), str(len(times)), str(seed)) for seed in range(PROCESSES)]
    children = (*publishing, *reading)
    async with asyncio.timeout(PATIENCE * 3):
        for child in children:
            assert await child.stdout.readline() in (b"open\n", b"ready\n")
        for beat in range(len(times) + AHEAD):
            for child in children:
                if beat >= AHEAD:
                    assert await child.stdout.readline() in (b"published\n", b"joined\n")
                if beat < len(times):
                    child.stdin.write(b"go\n")
        outs = await asyncio.gather(*(child.communicate() for child in (*reading, *publishing)))
    assert [child.returncode for child in children] == [0] * len(children)
    return [json.loads(line) for out, _ in outs for line in out.decode().splitlines()]


def whole(time: object, writers: list[str]) -> list[str]:
    """What the epoch `time` holds."""
    return sorted(f"{time}/{name}/{part}/{n}" for name in writers for part in range(6) for n in range(3))


@pytest.mark.rule("E14", "E15", "S9", "S10", "S25")
@pytest.mark.parametrize(
    ("segments", "writers"),
    [
        (3, ["a", "b", "c"]),
        pytest.param(3, ["a"], marks=pytest.mark.long),
        pytest.param(1, ["a", "b", "c"], marks=pytest.mark.long),
        pytest.param(1, ["a"], marks=pytest.mark.long),
    ],
)
async def test_int_times(services, writers: list[str], segments: int) -> None:
    stream = await services.stream(segments=segments, progress={"minWriters": len(writers)})
    times: list[tuple[object, object]] = [(time, time + 1) for time in range(BEATS)]
    joined: Counter[object] = Counter()
    seen = await watch(services, stream, writers, times)
    assert len(seen) == PROCESSES * EACH
    for epochs in seen:
        delivered = [time for time, _ in epochs]
        assert delivered == list(range(BEATS - len(delivered), BEATS)), "all from the first one on, in order, each once"
        joined[len(delivered)] += 1
        for time, records in epochs:
            assert records == whole(time, writers)
    assert len(joined) > 10, "they joined at many different moments"


@pytest.mark.rule("E14", "E15", "E5", "S25")
async def test_product_order_times(services) -> None:
    stream = await services.stream(shape="(int, int)", segments=3, progress={"minWriters": 2})
    # A row at a time: its times are under way together, also with those of the row before at the other writer.
    rows: list[tuple[object, object]] = []
    for a in range(6):
        rows += [((a, b), None) for b in range(5, -1, -1)]
        rows[-1] = (rows[-1][0], (a + 1, 0))
    expected = {(a, b) for a in range(6) for b in range(6)}
    seen = await watch(services, stream, ["a", "b"], rows)
    late = 0
    for epochs in seen:
        delivered: list[Any] = [tuple(time) for time, _ in epochs]
        assert len(set(delivered)) == len(delivered)
        assert set(delivered) <= expected
        positions = {time: n for n, time in enumerate(delivered)}
        for a, b in delivered:
            below = [t for t in ((a - 1, b), (a, b - 1)) if t in positions]
            assert all(positions[t] < positions[a, b] for t in below), "a linear extension of time"
        for time, records in epochs:
            assert records == whole(tuple(time), ["a", "b"])
        late += 0 < len(delivered) < len(expected)
    assert late > 20, "many joined in the middle"
