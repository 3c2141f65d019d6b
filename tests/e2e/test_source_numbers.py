"""examples/fan_in: four writers that are killed at random, with their publishers: each line once, each hour whole."""

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from tests.patience import PATIENCE
from tests.seeds import fresh_seed

import epochal
from epochal.errors import EpochAbortedError, EpochalError, RecordTypeError, UsageError, WriterLost
from epochal.protocol.writer.machine import WriterMachine

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fan_in"
PAGE = ROOT / "docs" / "exactly-once.md"
HOURS, LINES = 20, 60
STORED: dict[str, Any] = {"history": {"storage": {"size": "1Gi"}}, "encoding": "json"}


PROGRAMS = ("publish.py", "publish_blocking.py")


def test_the_page_shows_the_programs() -> None:
    codes = [part.partition("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    assert len(codes) == len(PROGRAMS)
    for name, code in zip(PROGRAMS, codes, strict=True):
        assert code in (EXAMPLE / name).read_text()


class Gate:
    """One writer's file and its program, which is started again whenever it was killed."""

    def __init__(self, name: str, program: str, folder: Path, chance: random.Random) -> None:
        self.name, self.program = name, program
        self.path = folder / f"{name}.jsonl"
        self.records = [
            {"hour": hour, "origin": chance.choice("ABCDEF"), "gate": name, "n": hour * LINES + n}
            for hour in range(HOURS)
            for n in range(LINES)
        ]
        self.path.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        self.kills = [1, *sorted(chance.sample(range(2, len(self.records)), 2))]
        """Counts of records at which it is killed."""
        self.killed = 0
        self.seen = 0
        self.process: asyncio.subprocess.Process | None = None

    async def run(self, stream: str, url: str) -> None:
        while True:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, str(EXAMPLE / self.program), stream, self.name, str(self.path),
                env={**os.environ, "EPOCHAL_CATALOG": url},
            )  # fmt: skip
            try:
                status = await self.process.wait()
            finally:  # where another part of the test has failed
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGKILL)
                await self.process.wait()
            if status == 0:
                return
            assert status == -signal.SIGKILL

    def saw(self, count: int) -> None:
        self.seen += count
        if self.kills and self.seen >= self.kills[0] and self.process is not None and self.process.returncode is None:
            self.kills.pop(0)
            self.killed += 1
            with suppress(ProcessLookupError):  # it ended in this moment
                os.kill(self.process.pid, signal.SIGKILL)  # its own `kill` would take its status away from `wait`


def lines_of(epoch: epochal.Epoch | epochal.EpochAborted) -> list[tuple[str, int]]:
    assert isinstance(epoch, epochal.Epoch)
    return sorted((record["gate"], record["n"]) for record in epoch.records())


@pytest.mark.rule("E50", "E6", "E10")
async def test_four_writers_killed_at_random_publish_each_line_once(services, tmp_path: Path) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")
    manifest = yaml.safe_load((EXAMPLE / "stream.yaml").read_text())
    stream = await services.stream(**{**manifest["spec"], "shape": "int", "encoding": "json"}, dedicated=True)
    gates = [Gate(f"gate-{letter}", PROGRAMS[n % 2], tmp_path, chance) for n, letter in enumerate("abcd")]
    lost = sorted(chance.sample(range(4 * HOURS * LINES), 2))
    async with asyncio.timeout(PATIENCE * 3), epochal.connect(services.url) as client, asyncio.TaskGroup() as group:
        running = [group.create_task(gate.run(stream, services.url)) for gate in gates]

        async def watch() -> None:
            """Count what arrives, whole or not, and kill who has come that far."""
            async with client.subscribe(stream, since="start", partial=True) as sub:
                async for event in sub.events():
                    if isinstance(event, epochal.Data):
                        for record in event.records():
                            next(gate for gate in gates if gate.name == record["gate"]).saw(1)
                        while lost and sum(gate.seen for gate in gates) >= lost[0]:
                            lost.pop(0)
                            for pid in await services.running_publishers(stream):
                                with suppress(ProcessLookupError):  # it ended in this moment
                                    os.kill(pid, signal.SIGKILL)

        watching = group.create_task(watch())
        async with client.subscribe(stream, since="start") as sub:
            found = {epoch.time: lines_of(epoch) async for epoch in sub.epochs()}
        await asyncio.gather(*running)
        await watching
    expected = {
        hour: sorted((each["gate"], each["n"]) for gate in gates for each in gate.records if each["hour"] == hour)
        for hour in range(HOURS)
    }
    assert found == expected
    assert sum(gate.killed for gate in gates) >= 4, "else nothing was tried"


async def lost(client: epochal.Client, stream: str, writer: str) -> None:
    """Wait until the catalog says that the publisher holds the place of a lost writer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (segment,) = (await client.catalog.get(*stream.split("/"))).segments
            if any((holder.kind, holder.writer) == ("lost", writer) for holder in segment.holders):
                return
            await asyncio.sleep(0.05)


@pytest.mark.rule("E50", "E46", "E4")
@pytest.mark.parametrize("fails", ["in the block", "with its client"])
async def test_a_writer_that_detaches_on_errors_keeps_its_place_until_it_is_back(services, fails: str) -> None:
    stream = await services.stream(**STORED, progress={"whenLost": "hold", "writerTimeout": "1s"})
    async with epochal.connect(services.url) as client, client.subscribe(stream) as sub:
        await sub.ready.wait()
        async with epochal.connect(services.url) as its:
            writer = its.writer(stream, "w", on_error="detach")
            await writer.__aenter__()
            await writer.append(0, ["a"], source=0)
            await writer.advance(1)
            await writer.append(1, ["b"], source=1)
            if fails == "in the block":
                await writer.__aexit__(RuntimeError, RuntimeError(), None)
        await lost(client, stream, "w")
        async with client.writer(stream, "w", on_error="detach") as writer:
            assert (writer.resume_from, writer.held, writer.pending_epochs) == (1, (1,), (1,))
            await writer.append(0, ["a"], source=0)
            await writer.advance(0)
            await writer.advance(1)  # as before, and done
            await writer.append(1, ["c"], source=2)
        async with client.writer(stream, "w") as writer:
            assert writer.pending_epochs == (), "a block that ends well has closed"
            await writer.finish()
        found = [
            (epoch.time, list(epoch.records())) async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch)
        ]
    assert found == [(0, ["a"]), (1, ["b", "c"])]


@pytest.mark.rule("E50", "E4")
async def test_a_blocking_program_that_starts_again_repeats_its_moves_and_goes_on(services) -> None:
    stream = await services.stream(**STORED)
    items = [(0, "a"), (1, "b"), (1, "c"), (4, "d")]

    def run(client: epochal.BlockingClient, fails_before: int | None) -> None:
        with client.writer(stream, "w", on_error="detach") as writer:
            for number, (time, item) in enumerate(items):
                if number == fails_before:
                    raise KeyboardInterrupt
                writer.advance(time)
                writer.append(time, [item], source=number)
            writer.finish()

    def work() -> list[tuple[int, list[Any]]]:
        with epochal.connect_blocking(services.url) as client:
            for fails_before in (3, 1, 2):
                with pytest.raises(KeyboardInterrupt):
                    run(client, fails_before)
            run(client, None)
            with client.subscribe(stream, since="start") as sub:
                return [(e.time, list(e.records())) for e in sub.epochs(PATIENCE) if isinstance(e, epochal.Epoch)]

    assert await asyncio.to_thread(work) == [(0, ["a"]), (1, ["b", "c"]), (4, ["d"])]


async def test_who_cannot_detach_gets_the_reason(services) -> None:
    async with epochal.connect(services.url) as client:
        with pytest.raises(UsageError, match="give a writer_id"):
            client.writer("test/any", on_error="detach")
        with pytest.raises(UsageError, match='on_error is "abort" or "detach", not \'keep\''):
            client.writer("test/any", "w", on_error="keep")  # type: ignore[arg-type]  # on purpose


@pytest.mark.rule("E50", "E4")
@pytest.mark.parametrize("detached", ["by hand", "on an error", "on an error as it closes", ""])
async def test_a_program_that_fails_leaves_its_epochs_or_learns_that_they_are_gone(services, detached: str) -> None:
    stream = await services.stream(**STORED)
    async with epochal.connect(services.url) as client:
        on_error: Literal["abort", "detach"] = "detach" if "on an error" in detached else "abort"
        with suppress(RuntimeError, RecordTypeError):
            async with client.writer(stream, "w", on_error=on_error, linger=0.01) as writer:
                await writer.append(0, ["a"], source=0)
                await writer.advance(1)
                await writer.append(1, ["b"], source=1)
                if detached == "by hand":
                    writer.detach()
                if detached != "on an error as it closes":
                    raise RuntimeError
                writer.append_nowait(1, [object()])
        async with client.writer(stream, "w") as writer:
            if detached:
                assert writer.resume_from == 1
                await writer.append(1, ["c"], source=2)
            else:
                with pytest.raises(EpochAbortedError, match="under another writer_id"):
                    _ = writer.resume_from
                with pytest.raises(EpochAbortedError):
                    writer.append_nowait(2, ["b"], source=2)
            await writer.finish()
        async with client.subscribe(stream, since="start") as sub:
            epochs = [epoch async for epoch in sub.epochs()]
        whole = [(epoch.time, list(epoch.records())) for epoch in epochs if isinstance(epoch, epochal.Epoch)]
        assert whole == [(0, ["a"]), *([(1, ["b", "c"])] if detached else [])]


@pytest.mark.rule("E50")
async def test_after_a_refused_number_the_writer_is_opened_again(services) -> None:
    stream = await services.stream(**STORED)
    async with epochal.connect(services.url) as client, client.writer(stream, "other") as other:
        async with client.writer(stream, "w") as writer:
            await writer.append(0, ["a"], source=0)
            await other.append(1, ["x"])
            await other.abort(1)
            with pytest.raises(EpochAbortedError):
                await writer.append(1, ["b"], source=1)
            with pytest.raises(UsageError, match=r"source number 1 was refused .* open it again"):
                await writer.append(2, ["c"], source=2)
        async with client.writer(stream, "w") as writer:
            assert writer.resume_from == 0
            await writer.append(2, ["b"], source=1)


@pytest.mark.rule("E50", "E3")
async def test_a_writer_that_was_given_up_takes_no_more_source_numbers(
    services, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await services.stream(**STORED, progress={"writerTimeout": "1s"})
    async with epochal.connect(services.url) as client, client.writer(stream, "w") as writer:
        await writer.append(0, ["a"], source=0)
        given_up = writer.session.machine
        with monkeypatch.context() as silent:
            silent.setattr(WriterMachine, "tick", lambda *_: None)  # no heartbeats
            async with asyncio.timeout(PATIENCE):
                while writer.session.machine is given_up:  # noqa: ASYNC110  # only the publisher knows when
                    await asyncio.sleep(0.01)
        lost: EpochalError | None = None
        while lost is None:
            try:
                await writer.append(0, ["b"])
            except EpochalError as error:
                lost = error
        assert isinstance(lost, WriterLost)
        await writer.append(1, ["c"])  # it goes on, without numbers
        with pytest.raises(UsageError, match="given this writer up"):
            _ = writer.resume_from


@pytest.mark.rule("E50")
@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_a_program_that_ended_well_goes_on_where_it_was(services, linger: float) -> None:
    stream = await services.stream(**STORED, segments=2)
    numbers = range(10)
    async with epochal.connect(services.url) as client:
        for end in (4, 10):  # what it has at one segment may be above what it has at the other
            async with client.writer(stream, "w", linger=linger) as writer:
                for number in numbers[writer.resume_from + 1 : end]:
                    position = await writer.append(number, [number], key=str(number).encode(), source=number)
                    assert position.incarnation >= 1
                    await writer.append(number, ["beside"], key=b"x")
        async with client.writer(stream, "w") as writer:
            for number in numbers:
                await writer.append(number, [number], key=str(number).encode(), source=number)
            await writer.finish()
        async with client.subscribe(stream, since="start") as sub:
            epochs = [epoch async for epoch in sub.epochs()]
            records = [record for epoch in epochs if isinstance(epoch, epochal.Epoch) for record in epoch.records()]
    assert sorted(record for record in records if record != "beside") == list(numbers)


@pytest.mark.rule("E50")
async def test_who_cannot_have_source_numbers_gets_the_reason(services) -> None:
    kept, memory = await services.stream(**STORED, segments=2), await services.stream()
    async with epochal.connect(services.url) as client:
        async with client.writer(kept) as writer:
            with pytest.raises(UsageError, match="give a writer_id"):
                await writer.append(0, ["a"], key=b"k", source=0)
        async with client.writer(kept, "w") as writer:
            with pytest.raises(UsageError, match="give a key"):
                writer.append_nowait(0, ["a"], source=0)
            await writer.append(0, ["a"], key=b"k", source=7)
            with pytest.raises(UsageError, match="7 comes after 7"):
                await writer.append(0, ["a"], key=b"k", source=7)
        with pytest.raises(UsageError, match="not open"):
            _ = client.writer(kept, "w").resume_from
        async with client.writer(memory, "w") as writer:
            with pytest.raises(UsageError, match=r"kept in memory|history\.storage"):
                _ = writer.resume_from


@pytest.mark.rule("E50")
async def test_without_a_loop(services) -> None:
    stream = await services.stream(**STORED)

    def publish() -> list[tuple[int | None, list[Any]]]:
        with epochal.connect_blocking(services.url) as client:
            with client.writer(stream, "w") as writer:
                assert writer.resume_from == -1
                writer.append(0, ["a"], source=3)
            with client.writer(stream, "w") as writer:
                assert writer.resume_from == 3
                writer.finish()
            with client.subscribe(stream, since="start") as sub:
                return [(data.source, list(data.records())) for data in sub.events() if isinstance(data, epochal.Data)]

    assert await asyncio.to_thread(publish) == [(3, ["a"])]
