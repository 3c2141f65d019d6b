"""Writers through a real sidecar to real publishers: what they publish, and what becomes of it when one fails."""

import asyncio
import logging
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.conftest import Services
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.sidecar.conftest import Process, Start, records, until

import epochal
from epochal.client.sidecar import sidecar as client_sidecar
from epochal.client.sidecar.sidecar import SidecarOptions, Way, check_address
from epochal.errors import ConfigError, SchemaMismatch, SidecarUnavailable, StreamNotFound
from epochal.protocol import messages as m
from epochal.protocol import wire

# ---- what goes through ----


@pytest.mark.rule("E1", "S34")
@pytest.mark.parametrize("way", ["ipc", "tcp"])
async def test_a_writer_publishes_through_it(
    services: Services, start: Start, client: epochal.Client, way: str
) -> None:
    sidecar = await start(f"tcp://127.0.0.1:{free_port()}" if way == "tcp" else "")
    stream = await services.stream(segments=3)
    large = b"x" * 300_000
    async with client.writer(stream, writer_id="w", clock=True) as writer:
        assert writer.way is Way.SIDECAR
        for number in range(200):
            writer.append_nowait(1, [number], key=b"%d" % number, headers={b"n": b"%d" % number})
        await writer.append(1, [large], key=b"large")
        await writer.advance(2)
        await writer.append(2, ["second"])
        await writer.finish()
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        first, second = [epoch async for epoch in sub.epochs()]
    assert isinstance(first, epochal.Epoch)
    assert isinstance(second, epochal.Epoch)
    assert sorted(map(str, first.records())) == sorted([*map(str, range(200)), str(large)])
    assert {batch.headers[b"n"]: batch.key for batch in first.batches if batch.headers} == {
        b"%d" % number: b"%d" % number for number in range(200)
    }
    assert list(second.records()) == ["second"]
    assert await sidecar.metric("passed_bytes_total") > 300_000


@pytest.mark.rule("E6")
async def test_an_opening_asks_once_whatever_it_expects(
    services: Services, start: Start, client: epochal.Client
) -> None:
    """What is asked together with the greeting is what the opening then waits for."""
    await start()
    stream = await services.stream()
    openings: tuple[dict[str, Any], ...] = ({}, {"encoding": "msgpack"}, {"wait": 5.0})
    for expected in openings:
        async with client.writer(stream, writer_id="w", **expected) as writer:
            sidecar = writer.session.sidecar
            assert sidecar is not None
            assert next(sidecar._requests) == 3, "a greeting and one question so far"
            assert sidecar._ahead is None, "and that was the one"
    with pytest.raises(SchemaMismatch):
        await client.writer(stream, writer_id="w", encoding="json").__aenter__()


async def test_a_connection_is_kept_warm_for_the_next_writer_and_serves_one_at_a_time(
    services: Services, start: Start, client: epochal.Client
) -> None:
    sidecar = await start()
    stream = await services.stream(segments=2)
    for number in range(3):
        async with client.writer(stream) as writer:
            await writer.append(number, [number], key=b"k")
            await writer.append(number, [number], key=b"other key")
        await until(lambda: is_metric(sidecar, "warm", 2))
    assert await sidecar.metric("writers") == 0
    async with client.writer(stream, writer_id="a") as one, client.writer(stream, writer_id="b") as other:
        await one.append(5, [1])
        await other.append(5, [2])
        assert await sidecar.metric("writers") == 4
    await until(lambda: is_metric(sidecar, "warm", 4))


async def is_metric(sidecar: Process, name: str, value: float) -> bool:
    return await sidecar.metric(name) == value


async def test_what_the_catalog_says_is_reported_as_without_it(
    services: Services, start: Start, client: epochal.Client
) -> None:
    await start()
    stream = await services.stream(encoding="json")
    with pytest.raises(StreamNotFound):
        async with client.writer("test/none", wait=0.1):  # load: it is to end
            pass
    with pytest.raises(SchemaMismatch, match="encoding"):
        async with client.writer(stream, encoding="arrow"):
            pass
    async with client.writer(stream, encoding="json") as writer:
        assert writer.way is Way.SIDECAR
    async with client.writer(stream, direct=True) as writer:
        assert writer.way is Way.DIRECT


async def test_a_stream_that_was_created_again_is_found_although_the_old_one_is_remembered(
    services: Services, start: Start, client: epochal.Client
) -> None:
    await start(remember=60)
    stream = await services.stream()
    spec = {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}}
    async with client.writer(stream) as writer:
        await writer.append(1, ["old"])
    await services.delete(stream)
    await services.declare(stream.removeprefix("test/"), spec)
    async with client.writer(stream) as writer:
        await writer.append(1, ["new"])
        await writer.finish()
    assert await records(client, stream) == [["new"]]


# ---- failures ----


@pytest.mark.rule("E6", "E10")
async def test_killed_while_a_task_writes_it_is_reported_at_once_and_the_retry_is_exact(
    services: Services, start: Start, client: epochal.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = await start()
    stream = await services.stream()
    async with client.writer(stream, writer_id="query", direct=True) as query:

        async def publish_while_it_dies() -> None:
            async with client.task_writer(stream, writer_id="task", under="query", group=7) as task:
                for number in range(20):
                    await task.append(1, [number])
                sidecar.signal(signal.SIGKILL)
                while True:
                    await task.append(1, ["more"])

        with pytest.raises(SidecarUnavailable, match="the connection to it was lost"):
            await publish_while_it_dies()
        await sidecar.ended()
        with monkeypatch.context() as patch:
            patch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "0.5")
            with pytest.raises(SidecarUnavailable):
                async with client.task_writer(stream, writer_id="task", under="query", group=7):
                    pass
        await start()
        async with client.task_writer(stream, writer_id="task", under="query", group=7) as again:
            for number in range(20):
                await again.append(1, [number])
            await again.flush()
        await query.finish()
    (epoch,) = await records_of(client, stream)
    assert [record for record in epoch if record != "more"] == list(range(20))


async def test_one_that_leaves_by_an_exception_gives_its_way_up_at_once(
    services: Services, start: Start, client: epochal.Client
) -> None:
    sidecar = await start()
    stream = await services.stream()

    async def fail() -> None:
        async with client.writer(stream, writer_id="task") as task:
            await task.append(1, ["one"])
            assert await sidecar.metric("writers") > 0
            raise KeyError("its own")

    with pytest.raises(KeyError):
        await fail()
    await until(lambda: is_metric(sidecar, "writers", 0))
    assert await sidecar.metric("warm") == 0, "what comes late through it must reach nobody"


async def records_of(client: epochal.Client, stream: str) -> list[list[Any]]:
    found = []
    async with asyncio.timeout(PATIENCE), client.subscribe(stream, since="start") as sub:
        async for epoch in sub.epochs():
            assert isinstance(epoch, epochal.Epoch)
            found.append(list(epoch.records()))
    return found


@pytest.mark.rule("E10")
async def test_a_publisher_that_is_killed_behind_a_sidecar_is_found_again_and_nothing_is_lost_or_doubled(
    services: Services, start: Start, client: epochal.Client
) -> None:
    await start()
    stream = await services.stream(history={"storage": {"size": "1Gi"}}, dedicated=True)
    async with client.writer(stream, writer_id="w") as writer:
        for number in range(300):
            writer.append_nowait(1, [number])
            if number == 150:
                await writer.drain()
                (pid,) = services.publishers(stream)
                os.kill(pid, signal.SIGKILL)
        await writer.flush()
        await writer.finish()
    assert await records(client, stream) == [list(range(300))]


async def test_one_that_was_killed_is_waited_for_until_it_is_back(
    services: Services, start: Start, client: epochal.Client, directory: Path
) -> None:
    """A task has few tries, and Kubernetes takes seconds to start a container again."""
    stream = await services.stream(segments=1)
    await start(f"ipc://{directory}/other")
    killed = await start(f"ipc://{directory}/s")
    await killed.stop()
    opening = asyncio.create_task(append(client, stream, 5))
    await asyncio.sleep(0.5)  # it has found nobody by then
    assert not opening.done()
    (directory / "other").rename(directory / "s")
    async with asyncio.timeout(PATIENCE):
        assert await opening == Way.SIDECAR


async def test_one_that_does_not_come_back_is_reported_after_two_seconds(
    services: Services, start: Start, client: epochal.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await services.stream(segments=1)
    await (await start()).stop()
    monkeypatch.delenv("EPOCHAL_SIDECAR_TIMEOUT")
    began = asyncio.get_running_loop().time()
    with pytest.raises(SidecarUnavailable, match="the connection to it was lost"):
        await append(client, stream, 5)
    assert asyncio.get_running_loop().time() - began >= client_sidecar.ANSWERS_WITHIN


async def append(client: epochal.Client, stream: str, time: int) -> Way:
    async with client.writer(stream) as writer:
        await writer.append(time, ["x"])
        return writer.way


async def test_a_sidecar_that_is_stopped_is_noticed_when_a_writer_opens(
    services: Services, start: Start, client: epochal.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = await start()
    stream = await services.stream()
    sidecar.signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setenv("EPOCHAL_SIDECAR_TIMEOUT", "0.3")
        with pytest.raises(SidecarUnavailable, match=r"not answered for 0\.3 s"):
            async with client.writer(stream):
                pass
    sidecar.signal(signal.SIGCONT)
    async with client.writer(stream) as writer:
        assert writer.way is Way.SIDECAR


async def test_without_one_publishers_are_found_through_the_catalog_and_it_is_said_once(
    services: Services, client: epochal.Client, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("EPOCHAL_SIDECAR", f"ipc://{directory}/nobody")
    stream = await services.stream()
    with caplog.at_level(logging.WARNING, "epochal.client"):
        for number in range(3):
            async with client.writer(stream) as writer:
                assert writer.way is Way.DIRECT
                await writer.append(number, [number])
    assert [record.message.split(":")[0] for record in caplog.records] == ["publishing without a sidecar"]
    assert client_sidecar.fallbacks == {os.getpid(): 3}


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [("pod-a", "pod-b", False), ("pod-a", "pod-a", True), ("", "pod-b", True), ("pod-a", "", True)],
)
async def test_that_of_another_pod_is_not_used(
    services: Services,
    start: Start,
    client: epochal.Client,
    monkeypatch: pytest.MonkeyPatch,
    ours: str,
    theirs: str,
    fits: bool,
) -> None:
    await start(pod=theirs)
    monkeypatch.setenv("EPOCHAL_POD_UID", ours)
    stream = await services.stream()
    if fits:
        async with client.writer(stream) as writer:
            assert writer.way is Way.SIDECAR
        return
    with pytest.raises(SidecarUnavailable, match=f"that of another pod \\({theirs}\\); this one is {ours}"):
        async with client.writer(stream):
            pass


async def test_a_second_one_on_the_same_socket_is_refused_and_a_stale_socket_is_replaced(
    services: Services, start: Start, client: epochal.Client, directory: Path
) -> None:
    first = await start()
    with pytest.raises(AssertionError, match=f"another sidecar \\(process {first.pid}\\) has"):
        await start()
    first.signal(signal.SIGKILL)
    await first.ended()
    assert "s" in os.listdir(directory)
    await start()
    assert stat.S_IMODE(os.stat(directory / "s").st_mode) == 0o660
    stream = await services.stream()
    async with client.writer(stream) as writer:
        await writer.append(1, [1])


async def test_a_version_that_it_does_not_speak_is_refused_with_both(start: Start, client: epochal.Client) -> None:
    sidecar = await start()
    answer = await asyncio.to_thread(say, sidecar.address, wire.encode(m.Greet(1, (7,), ""))[0])
    assert isinstance(answer, m.Refused)
    assert "speaks version 1" in answer.detail
    assert "(7,)" in answer.detail


def say(address: str, *messages: list[bytes], empty: bool = True) -> m.Message:
    """What a sidecar answers to messages by hand."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        for frames in messages:
            socket.send_multipart([b"", *frames] if empty else frames)
        assert socket.poll(int(PATIENCE * 1000)), "an answer"
        _, *frames = socket.recv_multipart()
        (message,) = wire.decode(frames)
        return message


JUNK: dict[str, tuple[list[bytes], bool]] = {
    "random bytes": ([b"\xff" * 1000], True),
    "nothing": ([], True),
    "a message of another protocol": ([wire.encode(m.Alive("0"))[0][0]], True),
    "two messages at once": ([b"".join(frames[0] for frames in wire.encode(m.Free()) * 2)], True),
    "data without a way": (wire.encode(m.Alive("0"))[0], False),
    "deep nesting": ([b"\x00\x11\x00\x00\x00\x00" + b"\x91" * 17], True),
}


async def test_junk_is_refused_once_and_harms_no_one(services: Services, start: Start, client: epochal.Client) -> None:
    sidecar = await start()
    stream = await services.stream()
    async with client.writer(stream) as writer:
        for name, (frames, empty) in JUNK.items():
            answer = await asyncio.to_thread(say, sidecar.address, frames, frames, empty=empty)
            assert isinstance(answer, m.Refused), name
            assert answer.code in ("remote_protocol", "limit_exceeded"), name
        await writer.append(1, ["unharmed"])
        await writer.finish()
    assert await records(client, stream) == [["unharmed"]]
    assert await sidecar.metric("refused_total") == len(JUNK)


@pytest.mark.rule("E6")
async def test_it_forwards_only_to_those_whom_the_catalog_named(start: Start) -> None:
    sidecar = await start()
    greeted = await asyncio.to_thread(say, sidecar.address, wire.encode(m.Greet(1, (1,), ""))[0])
    assert isinstance(greeted, m.Greeted)
    strange = m.Pass(2, greeted.instance, "tcp://127.0.0.1:1")
    answer = await asyncio.to_thread(say, sidecar.address, wire.encode(strange)[0])
    assert isinstance(answer, m.Refused)
    assert (answer.op, answer.code) == (2, "no_publisher")
    other = await asyncio.to_thread(say, sidecar.address, wire.encode(strange._replace(instance="another"))[0])
    assert isinstance(other, m.Refused)
    assert other.code == "sidecar_unavailable"


# ---- life ----


async def test_it_is_ready_when_the_catalog_answers(start: Start, directory: Path, services: Services) -> None:
    sidecar = await start()
    assert await sidecar.get("/healthz") == (200, "ok\n")
    assert await sidecar.get("/readyz") == (200, "ok\n")
    lonely = await Process.start(f"ipc://{directory}/t", f"http://127.0.0.1:{free_port()}", directory)
    try:
        status, text = await lonely.get("/readyz")
        assert status == 503
        assert "does not answer" in text
        assert (await lonely.get("/healthz"))[0] == 200
    finally:
        await lonely.stop()


async def test_asked_to_stop_it_takes_no_more_writers_and_lets_those_that_are_there_end(
    services: Services, start: Start, client: epochal.Client, directory: Path
) -> None:
    sidecar = await start()
    stream = await services.stream()
    async with client.writer(stream) as writer:
        await writer.append(1, [1])
        sidecar.signal(signal.SIGTERM)
        await until(lambda: answers(sidecar, "/readyz", 503))
        with pytest.raises(SidecarUnavailable, match="takes no more"):
            async with client.writer(stream):
                pass
        await writer.append(1, [2])
        await writer.finish()
    assert await sidecar.ended() == 0
    assert os.listdir(directory) == ["sidecar.log"]
    assert await records(client, stream) == [[1, 2]]


async def answers(sidecar: Process, path: str, status: int) -> bool:
    return (await sidecar.get(path))[0] == status


async def test_a_writer_that_does_not_end_holds_its_end_up_for_a_while_only(
    services: Services, start: Start, client: epochal.Client
) -> None:
    sidecar = await start(drain_timeout=0.3)
    stream = await services.stream()

    async def publish_for_ever() -> None:
        async with client.writer(stream) as writer:
            await writer.append(1, [1])
            sidecar.signal(signal.SIGTERM)
            assert await sidecar.ended() == 0
            while True:
                await writer.append(1, [2])

    with pytest.raises(SidecarUnavailable):
        await publish_for_ever()


async def test_a_child_of_a_fork_uses_it_with_sockets_of_its_own(services: Services, start: Start) -> None:
    await start()
    stream = await services.stream()
    script = (
        "import asyncio, os, sys, epochal\n"
        "async def publish(n):\n"
        "    async with epochal.connect() as client, client.writer(sys.argv[1]) as writer:\n"
        "        assert writer.way == 'sidecar'\n"
        "        await writer.append(1, [n])\n"
        "asyncio.run(publish(0))\n"
        "for n in (1, 2):\n"
        "    if not os.fork():\n"
        "        asyncio.run(publish(n))\n"
        "        os._exit(0)\n"
        "assert all(os.wait()[1] == 0 for _ in range(2))\n"
        "print('done', flush=True)\n"
    )
    child = await services.run(script, stream)
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await child.stdout.readline() == b"done\n"


@pytest.mark.rule("E10")
async def test_what_a_publisher_does_not_take_is_bounded_and_another_writer_gets_through(
    services: Services, start: Start, client: epochal.Client
) -> None:
    sidecar = await start(held_bytes=64 * 2**20)
    stuck, other = await services.stream(dedicated=True), await services.stream(dedicated=True)
    (pid,) = services.publishers(stuck)
    async with client.writer(other) as free, client.writer(stuck) as writer:
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(40):
                writer.append_nowait(1, [b"x" * 10**6])
                await asyncio.sleep(0)
            for number in range(50):
                await free.append(1, [number])
            assert await sidecar.metric("held_bytes") < 16 * 2**20
        finally:
            os.kill(pid, signal.SIGCONT)
        await writer.flush()
        await until(lambda: is_metric(sidecar, "held_bytes", 0))
        await writer.finish()
        await free.finish()
    assert await records(client, other) == [list(range(50))]


# ---- settings ----


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("run/epochal.sock", "no address"), ("ipc://relative", "absolute path"), ("ipc:///run/", "absolute path"),
        (f"ipc:///{'x' * 107}", "107"), ("tcp://10.0.0.1:8703", "this machine"), ("tcp://127.0.0.1", "this machine"),
        ("tcp://localhost:0", "this machine"), ("http://127.0.0.1:8703", "no address"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_named_with_the_right_form(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        SidecarOptions.read({"EPOCHAL_SIDECAR": address})
    assert str(caught.value).startswith(f"EPOCHAL_SIDECAR={address}")


def test_right_addresses_and_requirements() -> None:
    for address in ("ipc:///run/epochal/ingest.sock", "tcp://127.0.0.1:8703", "tcp://[::1]:8703", "tcp://localhost:1"):
        assert check_address(address) == address
    assert SidecarOptions.read({}) is None
    assert SidecarOptions.read({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_REQUIRED": "True"}) == SidecarOptions(
        "ipc:///s", True, "", 2.0
    )
    patient = SidecarOptions.read({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_TIMEOUT": " 7.5 "})
    assert patient is not None
    assert patient.timeout == 7.5
    for wrong, said in (
        ({"EPOCHAL_SIDECAR_REQUIRED": "maybe"}, "true or false"),
        ({"EPOCHAL_SIDECAR_REQUIRED": "1"}, "set it"),
        ({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_TIMEOUT": "2s"}, "TIMEOUT=2s: write seconds"),
        ({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_TIMEOUT": "nan"}, "write seconds"),
        ({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_TIMEOUT": "0"}, "more than 0"),
        ({"EPOCHAL_SIDECAR": "ipc:///s", "EPOCHAL_SIDECAR_TIMEOUT": "301"}, "at most 300"),
    ):
        with pytest.raises(ConfigError, match=said):
            SidecarOptions.read(wrong)


async def test_wrong_settings_of_the_process_are_reported(services: Services, start: Start, directory: Path) -> None:
    for listen, said in (("tcp://0.0.0.0:1", "this machine"), (f"ipc://{directory}/none/s", "emptyDir")):
        with pytest.raises(AssertionError, match=said):
            await start(listen)
