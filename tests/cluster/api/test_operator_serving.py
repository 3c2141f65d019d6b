"""Real publishers behind the pods: what is published before, while and after pods are replaced is read, whole."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api.sandbox import Node, Process, Sandbox, eventually
from tests.patience import PATIENCE

import epochal
from epochal.client.catalog.catalog import CatalogClient
from epochal.kube.api import ApiError

Object = dict[str, Any]


class RunningNode(Node):
    """Runs each pod's program as a process; one that goes is told to end, and may outlive its successor's start."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox.api, sandbox.namespace)
        self._directory = directory
        self.processes: dict[str, Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def _work(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self.processes and "deletionTimestamp" not in pod["metadata"]:
            self.processes[uid] = self._process(pod)
            self._spawn(self._start(pod, self.processes[uid]))

    def _process(self, pod: Object) -> Process:
        [container] = pod["spec"]["containers"]
        assert container["command"] == ["epochal-publisher", "serve"]
        given = {item["name"]: item["value"] for item in container["env"]}
        here = {"HOST": "127.0.0.1", "ADVERTISE": "127.0.0.1", "LOG_RETRY": 0.1}
        here |= {f"{name}_PORT": 0 for name in ("EVENTS", "REQUESTS", "INGEST", "HTTP")}
        here |= {"DATA": self._directory / "volumes"} if "EPOCHAL_PUBLISHER_DATA" in given else {}
        here |= {"SUPERSEDED_MARK": self._directory / f"{pod['metadata']['uid']}.superseded"}
        settings = {**given, **{f"EPOCHAL_PUBLISHER_{name}": value for name, value in here.items()}}
        log = self._directory / f"{pod['metadata']['name']}-{pod['metadata']['uid'][:4]}.log"
        return Process("epochal-publisher", ["serve"], log, settings)

    async def _start(self, pod: Object, process: Process) -> None:
        await process.start()
        with contextlib.suppress(ApiError):  # it may be gone by now
            found = await self._api.get("Pod", self._namespace, pod["metadata"]["name"])
            if found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]:
                await self.say(found, ready=True, state={"running": {}})

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_gone(self, uid: str) -> None:
        super()._is_gone(uid)
        if (process := self.processes.pop(uid, None)) is not None:
            self._spawn(process.stop())

    async def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            await process.kill()


@pytest.fixture
async def running(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox where pods really run."""
    sandbox.node.held = True
    node = RunningNode(sandbox, tmp_path)
    task = asyncio.create_task(node.run())
    yield sandbox
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await node.close()


async def test_nothing_is_lost_while_every_pod_is_replaced_and_the_operator_is_killed(running: Sandbox) -> None:
    operator = running.operator()
    await operator.start()
    await running.declare(segments=2, history={"storage": {"size": "1Gi"}})
    await running.is_ready()
    stream = f"{running.namespace}/flights"
    read: list[tuple[Any, int]] = []
    async with epochal.connect(running.catalog.url) as client:

        async def follow() -> None:
            async with client.subscribe(stream, since="start") as subscriber:
                async for epoch in subscriber.epochs():
                    assert isinstance(epoch, epochal.Epoch)
                    read.append((epoch.time, len(list(epoch.records()))))  # seen while it grows

        following = asyncio.create_task(follow())
        async with client.writer(stream, writer_id="w") as writer:
            for time in range(12):
                if time == 3:
                    await running.change(push={"heartbeat": "2s"})
                if time == 6:
                    await operator.kill()
                    await operator.start()
                for key in range(10):
                    await writer.append(time, [{"key": key}], key=str(key).encode())
                await writer.advance(time + 1)
                await asyncio.sleep(0.5)
            await running.is_ready()
            await eventually(lambda: tells(running, "[12]"))
            await writer.finish()
        async with asyncio.timeout(PATIENCE):
            await following
    assert read == [(time, 10) for time in range(12)]
    await eventually(lambda: tells(running, "[]"))


async def tells(sandbox: Sandbox, frontier: str) -> bool:
    stream = await sandbox.stream()
    assert stream is not None
    return bool(stream["status"].get("frontier") == frontier)


async def test_a_stream_that_is_deleted_notifies_its_readers_and_one_of_the_same_name_is_another(
    running: Sandbox,
) -> None:
    await running.operator().start()
    await running.declare(segments=1)
    old = await running.is_ready()
    stream = f"{running.namespace}/flights"
    async with epochal.connect(running.catalog.url) as client, client.subscribe(stream) as subscriber:
        await subscriber.ready.wait()
        await running.delete()
        with pytest.raises(epochal.errors.StreamGone):
            async for _ in subscriber.events():
                pass
        await running.declare(segments=1)
        new = await running.is_ready()
        assert new["status"]["catalogUid"] != old["status"]["catalogUid"]
    async with CatalogClient(running.catalog.url) as catalog:
        publishers = await catalog.publishers(running.namespace)
    assert [each.id for each in publishers if not each.superseded] == [f"{running.namespace}.flights-0"]


DIES = """
import asyncio, os, signal, sys
import epochal

async def main(catalog, stream):
    async with epochal.connect(catalog) as client, client.writer(stream, writer_id="dies") as writer:
        await writer.append(0, [{"key": "of the writer that died"}])
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.rule("E46")
async def test_a_lost_writer_is_reported_and_waited_for_until_it_is_released(running: Sandbox) -> None:
    await running.operator().start()
    await running.declare(segments=1, progress={"minWriters": 2, "writerTimeout": "5s", "whenLost": "hold"})
    await running.is_ready()
    url, stream = running.catalog.url, f"{running.namespace}/flights"
    async with epochal.connect(url) as client, client.subscribe(stream) as subscriber:
        await subscriber.ready.wait()
        dies = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES, url, stream)
        async with client.writer(stream, writer_id="stays") as writer:
            await writer.append(0, [{"key": "of the writer that stays"}])
            await writer.append(1, [{"key": "later"}])
            await writer.finish()
            assert await dies.wait() < 0
            await running.is_told("Degraded", "WriterLost")
            found = await running.stream()
            assert found is not None
            [degraded] = [each for each in found["status"]["conditions"] if each["type"] == "Degraded"]
            assert (degraded["status"], "dies" in degraded["message"]) == ("True", True)
            async with CatalogClient(url) as catalog:
                await catalog.release(running.namespace, "flights", "dies")
        async with asyncio.timeout(PATIENCE):
            items = [item async for item in subscriber.epochs()]
    assert [(item.time, isinstance(item, epochal.Epoch)) for item in items] == [(0, False), (1, True)]
    await running.is_told("Degraded", "AsExpected")
