"""Jobs that are killed or fail in the middle: each batch is published once, and half an epoch is never complete."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.patience import PATIENCE

import epochal

pytestmark = [pytest.mark.java, pytest.mark.long]  # each starts Spark several times

JOB = Path(__file__).with_name("job.py")


class Job:
    """The job as a process with its own group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def kill(self) -> None:
        """End driver and JVM at once; Spark's workers end with them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE * 2):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def job(catalog: str, stream: str, folder: Path, fault: str = "", *more: str) -> AsyncIterator[Job]:
    with (folder / "job.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(JOB), "--catalog", catalog, "--stream", stream, "--input", str(folder / "input"),
            "--checkpoint", str(folder / "checkpoint"), "--fault", fault, *more,
            stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, start_new_session=True, cwd=folder,
        )  # fmt: skip
    running = Job(process)
    try:
        yield running
    finally:
        running.kill()
        await process.wait()


def write(folder: Path, part: int, *rows: tuple[int, int]) -> None:
    schema = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("part", pa.int32())])
    (folder / "input").mkdir(exist_ok=True)
    table = pa.Table.from_pylist([{"t": t, "n": n, "part": part} for t, n in rows], schema=schema)
    pq.write_table(table, folder / "input" / f"part{part}.parquet")


def committed(folder: Path) -> list[Path]:
    """Batches that Spark has recorded as committed."""
    return list((folder / "checkpoint" / "commits").glob("[0-9]*"))


def failed(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("failed-*")}


def log(folder: Path) -> str:
    return (folder / "job.log").read_text()[-6000:]


async def whole(sub: epochal.Subscription) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async with asyncio.timeout(PATIENCE * 2):
        async for epoch in sub.epochs():
            assert isinstance(epoch, epochal.Epoch)
            assert epoch.time not in found
            found[epoch.time] = sorted(record["n"] for record in epoch.records())
    return found


async def killed_within(watch: epochal.Subscription, stalled: Job, folder: Path) -> int:
    """Kill a job at the first batch that it publishes; returns the epoch that is aborted then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE * 2):
            async for event in watch.events():
                if isinstance(event, epochal.Data):
                    assert event.count == 1
                    stalled.kill()
                if isinstance(event, epochal.EpochAborted):
                    assert isinstance(event.time, int)
                    return event.time
    raise AssertionError(log(folder))


@pytest.mark.rule("E6")
async def test_a_batch_killed_between_write_and_commit_is_published_once(
    catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare(segments=2)
    write(tmp_path, 0, (3, 1), (3, 2), (4, 3))
    write(tmp_path, 1, (3, 4), (4, 5))
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with job(catalog, stream, tmp_path, "commit") as killed:
            assert await killed.ended() == -signal.SIGKILL
        assert sub.frontier() == (0,)
        assert not committed(tmp_path)
        async with job(catalog, stream, tmp_path) as restarted:
            assert await restarted.ended() == 0, log(tmp_path)
        assert await whole(sub) == {3: [1, 2, 4], 4: [3, 5]}


@pytest.mark.rule("E6")
async def test_a_batch_killed_before_its_commit_runs_again_with_as_many_cores_only(
    catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare(segments=2, timeout="5m")
    for part in range(4):
        write(tmp_path, part, (3, 2 * part), (4, 2 * part + 1))
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with job(catalog, stream, tmp_path, "commit", "--cores", "4") as killed:
            assert await killed.ended() == -signal.SIGKILL
        async with job(catalog, stream, tmp_path, "", "--cores", "1") as changed:
            assert await changed.ended() == 1
        assert "epochal.errors.PartitionsChanged: batch 0 of query 'job' was begun with 4 partitions" in log(tmp_path)
        async with job(catalog, stream, tmp_path, "", "--cores", "4") as restarted:
            assert await restarted.ended() == 0, log(tmp_path)
        assert await whole(sub) == {3: [0, 2, 4, 6], 4: [1, 3, 5, 7]}


@pytest.mark.rule("E6")
@pytest.mark.parametrize("options", [(), ("--batch",)], ids=["stream", "batch"])
async def test_tasks_that_fail_abort_nothing_and_publish_once(
    catalog: str, declare: Callable[..., str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    stream = declare(segments=2)
    write(tmp_path, 0, (3, 1), (4, 2))
    write(tmp_path, 1, (3, 3), (4, 4))
    async with epochal.connect(catalog) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with job(catalog, stream, tmp_path, "flaky", *options) as flaky:
            assert await flaky.ended() == 0, log(tmp_path)
        assert failed(tmp_path) == {"failed-0", "failed-1"}
        assert await whole(sub) == {3: [1, 3], 4: [2, 4]}


@pytest.mark.rule("E3")
async def test_half_an_epoch_of_a_killed_job_is_aborted_and_never_complete(
    catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare(segments=2, timeout="15s")  # a busy machine holds up a driver that starts for seconds
    write(tmp_path, 0, (3, 1))
    write(tmp_path, 1, (3, 2))
    async with (
        epochal.connect(catalog) as client,
        client.subscribe(stream) as sub,
        client.subscribe(stream, partial=True) as watch,
    ):
        await sub.ready.wait()
        await watch.ready.wait()
        async with job(catalog, stream, tmp_path, "stall") as stalled:
            assert await killed_within(watch, stalled, tmp_path) == 3
        async with client.writer(stream) as other:  # the rest of the stream is as good as ever
            await other.append(4, [{"n": 9}])
            await other.finish()
        async with asyncio.timeout(PATIENCE * 2):
            told = [epoch async for epoch in sub.epochs()]
        assert told[0] == epochal.EpochAborted(3)
        assert [(epoch.time, epoch.count) for epoch in told[1:] if isinstance(epoch, epochal.Epoch)] == [(4, 1)]
        assert len(told) == 2


@pytest.mark.rule("E3")
async def test_what_a_killed_batch_job_published_is_aborted_without_waiting_for_a_time_out(
    catalog: str, declare: Callable[..., str], tmp_path: Path
) -> None:
    stream = declare(segments=2, timeout="1h")
    write(tmp_path, 0, (3, 1))
    write(tmp_path, 1, (3, 2))
    async with epochal.connect(catalog) as client, client.subscribe(stream, partial=True) as watch:
        await watch.ready.wait()
        async with job(catalog, stream, tmp_path, "stall", "--batch") as stalled:
            assert await killed_within(watch, stalled, tmp_path) == 3
        assert watch.frontier() == (0,)
