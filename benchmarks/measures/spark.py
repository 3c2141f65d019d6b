"""P9: what publishing adds to a micro-batch of Spark, by encoding, over sinks that keep nothing."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

from harness.bench import Bench
from harness.processes import Role, program, role
from harness.rounds import interval, middle
from harness.tables import Table

ROWS = 200_000
"""Of a time, a number, a float and a short text; one file, one task, one micro-batch."""
BARE = ("noop", "counts")
TARGETS = {"arrow": "<= 1.1", "msgpack": "<= 1.4", "json": "<= 1.7"}
WARM = 3
PATH = [Path(__file__).parents[1]]
"""For Spark's workers, which unpack the sink that counts."""


async def measure(bench: Bench) -> list[Table]:
    """Seconds of `addBatch`: reading the file, the task, and the commit; a turn is a micro-batch."""
    bench.tell("P9")
    async with AsyncExitStack() as held:
        streams = {
            encoding: (await held.enter_async_context(bench.stream("p9", encoding=encoding))).name
            for encoding in TARGETS
        }
        sinks = [*BARE, *streams.values()]
        spark = await held.enter_async_context(session(bench, sinks))
        systems = {name: partial(batch, spark, number) for number, name in enumerate([*BARE, *TARGETS])}
        for number in [*range(len(sinks))] * WARM:  # the first of each are slower
            await batch(spark, number)
        found = await bench.in_turn(systems)
    rows = [[name, f"{1000 * middle(found[name]):,.0f}", "", "", ""] for name in BARE]
    for name, target in TARGETS.items():
        over = [interval([one / other for one, other in zip(found[name], found[bare], strict=True)]) for bare in BARE]
        rows.append([name, f"{1000 * middle(found[name]):,.0f}", *over, target])
    headings = ["sink", "addBatch, ms", "over noop", "over one that counts", "target"]
    return [Table("P9", f"P9: {ROWS:,} rows a micro-batch, local[1]", headings, rows)]


@asynccontextmanager
async def session(
    bench: Bench, sinks: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Role]:
    """A Spark session with these sinks, ready for turns."""
    if program("java") is None:
        raise RuntimeError("Spark needs Java 17 or newer, and there is none on the PATH")
    to = {"catalog": bench.catalog, "sinks": ",".join(sinks), "rows": max(1000, int(ROWS * bench.scale))}
    with role("spark_sinks.serve", PATH, environment, **to) as spark:
        for _ in range(1 + len(sinks)):
            await spark.line()
        try:
            yield spark
        finally:
            spark.end()


async def batch(spark: Role, sink: int) -> float:
    """Seconds of `addBatch` of one micro-batch."""
    spark.tell(sink)
    return float((await spark.line())["seconds"])
