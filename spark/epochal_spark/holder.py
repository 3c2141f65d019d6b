"""The process that holds a batch job's capability.

For a batch write, Spark calls the sink's code only in short-lived processes (its planner, its tasks, its commit), none
of which lives as long as the job. So the planner starts this one. It sends heartbeats to the publishers while the tasks
write, completes times when the job commits, aborts the job's epochs when it fails, and ends when Spark's driver ends.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from enum import Enum, auto
from typing import Any, NamedTuple

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError, Unavailable, from_code
from epochal_spark.capability import CapabilityMoves
from epochal_spark.commit_channel import Committed, Handed, HandoverServer, HeldCapability
from epochal_spark.declaration import Declared, look_up
from epochal_spark.options import Complete, SinkOptions
from epochal_spark.tracing import Batches

POLL = 0.5
"""Seconds between looks at the driver, on systems that do not report its end."""


class Order(NamedTuple):
    """The order to a holder; it ends with the process `driver`."""

    stream: str
    catalog: str
    writer: str
    complete: str
    finish: bool
    wait: float
    driver: int
    trace: tuple[str, str] | None = None
    """The trace context of the span that is the parent of the job's."""


class _Outcome(Enum):
    COMMITTED = auto()
    FAILED = auto()


class _JobFailed(Exception):
    """Raised to leave the writer's block, so that its epochs are aborted."""


def look_up_now(options: SinkOptions) -> Declared:
    """The stream's declaration, read in a process without an event loop."""

    async def read() -> Declared:
        async with CatalogClient(options.catalog) as catalog:
            return await look_up(catalog, options.stream, options.wait)

    return asyncio.run(read())


def start_holder(options: SinkOptions, driver: int) -> HeldCapability:
    """Start the process; returns the address for commits once it holds the capability. Raises its error if it fails."""
    order = Order(
        options.stream, options.catalog, options.query, options.complete, options.finish, options.wait, driver,
        None if options.trace is None else (options.trace.traceparent, options.trace.tracestate),
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", "from epochal_spark.holder import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Spark ends its workers by their process group
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError), process.stdin:
        process.stdin.write(json.dumps(order).encode())
    with process.stdout:
        line = process.stdout.readline()
    status = process.wait()
    if not line:
        raise Unavailable(
            f"the process that should hold the capability ended at once (status {status}); see its stderr"
        )
    answer = json.loads(line)
    if "address" not in answer:
        raise from_code(answer["code"], answer["detail"])
    trace = answer.get("trace")
    return HeldCapability(str(answer["address"]), None if trace is None else Handed(*trace))


class _Job:
    """One job's capability, from open to commit or abort."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._outcome: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._left = asyncio.Event()
        self._holding: CapabilityMoves
        self._batches = Batches(order.stream, order.writer)

    async def run(self) -> None:
        """Open the writer, print the address, and hold until the job is over. Raises why opening failed."""
        order = self._order
        watching = asyncio.create_task(self._end_with(order.driver))
        server = HandoverServer(self._committed, self._aborted)
        try:
            async with epochal.connect(order.catalog) as client:
                declared = await look_up(client.catalog, order.stream, order.wait)
                with contextlib.suppress(_JobFailed):
                    async with client.capability_writer(
                        order.stream, writer_id=order.writer, direct=True, wait=order.wait
                    ) as writer:
                        self._holding = CapabilityMoves(writer, declared.shape, Complete(order.complete))
                        self._batches.begun_job(None if order.trace is None else Handed(*order.trace))
                        _reply({"address": await server.start(), "trace": self._batches.handed})
                        if await self._outcome is _Outcome.FAILED:
                            self._batches.over(_JobFailed("the job failed"))
                            raise _JobFailed
            self._left.set()
            await server.settle()
        finally:
            watching.cancel()
            await server.close()
            self._batches.close()

    async def _committed(self, batch: Committed) -> None:
        writer = self._holding.writer
        with self._batches.committing(batch.records, batch.greatest) as span:
            await self._holding.committed(batch)
            self._batches.committed(span, writer.held)
            await (writer.finish() if self._order.finish else writer.close())
        self._batches.over()
        self._end(_Outcome.COMMITTED)

    async def _aborted(self) -> None:
        self._end(_Outcome.FAILED)
        await self._left.wait()

    def _end(self, outcome: _Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _end_with(self, driver: int) -> None:
        await _ended(driver)
        self._end(_Outcome.FAILED)


async def _ended(process: int) -> None:
    """Return once a process, which is not a child of this one, has ended."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or an old one
        while _lives(process):  # noqa: ASYNC110  # there is nothing to await
            await asyncio.sleep(POLL)
        return
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, over.set)
    try:
        await over.wait()
    finally:
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _reply(answer: dict[str, Any]) -> None:
    """Print one line for the process that started this one; nothing is printed after it."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdout.close()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives


async def _hold(order: Order) -> None:
    try:
        await _Job(order).run()
    except EpochalError as error:
        if sys.stdout.name != os.devnull:
            _reply({"code": error.code, "detail": str(error)})


def main() -> None:
    """Read the order from standard input, answer with one line on standard output, and hold in the background."""
    order = Order(*json.load(sys.stdin))
    if os.fork() == 0:  # so that the process that started this one does not wait for the job
        asyncio.run(_hold(order))
