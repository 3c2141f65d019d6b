"""P5: what a batch costs a publisher that has 64 subscribers."""

from functools import partial

from harness.bench import Bench
from harness.processes import free_port, role
from harness.rounds import Ratio, middle
from harness.tables import Table

SUBSCRIBERS = 64
BATCH = 16
"""Records of 128 bytes: 2 kB."""
RECORD_BYTES = 130
"""... as msgpack has them."""
RATE = 1_000
MESSAGES = 3_000
TARGET = 1.3


async def measure(bench: Bench) -> list[Table]:
    """Beside a bare XPUB that sends the same bytes in one frame a batch, to the same number of SUB sockets.

    A run counts only once every subscriber has had every byte, so that nothing is cheap because it was dropped.
    """
    bench.tell("P5")
    messages = bench.many(MESSAGES)
    figures = await bench.in_turn(
        {
            "publisher": partial(publisher_cpu, bench, messages, SUBSCRIBERS),
            "bare XPUB": partial(_bare, messages),
        }
    )
    cells = [f"{1e6 * middle(taken):,.0f}" for taken in figures.values()]
    row = [*cells, str(Ratio.of(figures["publisher"], figures["bare XPUB"])), f"<= {TARGET:g}"]
    headings = ["publisher, us a batch", "bare XPUB, us a batch", "over bare XPUB", "target"]
    return [Table("P5", f"P5: processor time a 2 kB batch, {SUBSCRIBERS} subscribers", headings, [row])]


async def publisher_cpu(bench: Bench, messages: int, subscribers: int, trace: int = 0) -> float:
    """Processor seconds a batch: taking it in, logging and acknowledging it, and pushing it to all.

    `trace`: what the writer traces (`roles.common`).
    """
    expected = subscribers * messages * BATCH * RECORD_BYTES
    async with bench.stream("p5") as stream:
        segment = stream.info.segments[0]
        assert segment.publisher is not None
        crowd = {name: segment.publisher.addresses[name] for name in ("requests", "events")}
        crowd |= {"stream": stream.info.uid, "segment": segment.id}
        sends = {"catalog": bench.catalog, "stream": stream.name, "rate": RATE, "messages": messages, "batch": BATCH}
        sends["trace"] = trace
        with (
            role("crowd.listen", **crowd, size=subscribers, expected=expected) as listening,
            role("ours.send_paced", **sends) as sender,
        ):
            await listening.line()
            await sender.line()
            before = stream.cpu()
            await sender.line()
            await listening.line()
            return (stream.cpu() - before) / messages


async def _bare(messages: int) -> float:
    address = f"tcp://127.0.0.1:{free_port()}"
    sends = {"rate": RATE, "messages": messages, "batch": BATCH, "subscribers": SUBSCRIBERS}
    with role("bare_zmq.publish_paced", address=address, **sends) as sender:
        await sender.line()
        expected = SUBSCRIBERS * messages * BATCH * RECORD_BYTES
        with role("crowd.listen_bare", address=address, size=SUBSCRIBERS, expected=expected) as listening:
            await listening.line()
            return float((await sender.line())["cpu"]) / messages
