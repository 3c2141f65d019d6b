"""The client for programs without an event loop: real streams, threads, interrupts and forks."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.patience import PATIENCE

import epochal
from epochal.errors import CapabilityError, ConfigError, StreamNotFound, TimedOut, UsageError

INTERNAL = {
    "act",
    "fail",
    "take_reports",
    "up",
    "down",
    "position",
    "whole_filter",
    "share_memory",
    "held_bytes",
}
"""What the links of a writer or a subscription call."""

INTERRUPTED = """
import sys, threading, epochal
try:
    with epochal.connect_blocking() as client, client.writer(sys.argv[1], "w") as writer, client.subscribe(sys.argv[1]) as sub:
        sub.ready.wait(20)
        writer.append(1, ["half"])
        print("reading", flush=True)
        next(sub.epochs())
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""  # noqa: E501

FORKED = """
import os, sys, epochal
with epochal.connect_blocking() as client, client.writer(sys.argv[1]) as writer:
    writer.append(1, ["parent"])
    child = os.fork()
    if child == 0:
        told = []
        for use in (lambda: writer.append(1, ["child"]), lambda: client.subscribe(sys.argv[1]), writer.close):
            try:
                use()
            except epochal.errors.UsageError as error:
                told.append("fork" in str(error))
        client.close()
        os._exit(0 if told == [True] * 3 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    writer.finish()
"""


@pytest.mark.parametrize(
    ("kind", "inner"),
    [
        (epochal.BlockingClient, epochal.Client),
        (epochal.BlockingWriter, epochal.Writer),
        (epochal.BlockingSubscription, epochal.Subscription),
    ],
)
def test_every_name_is_there_with_its_signature_and_docstring(kind: type, inner: type) -> None:
    for name, member in inspect.getmembers(inner):
        if name.startswith("_") or name in INTERNAL:
            continue
        assert inspect.getdoc(getattr(kind, name)), name
        if inspect.iscoroutinefunction(member):
            assert not inspect.iscoroutinefunction(getattr(kind, name))
        if callable(member) and name not in ("close", "epochs", "events"):
            found, wanted = (inspect.signature(getattr(of, name)).parameters for of in (kind, inner))
            assert found == wanted, name


def test_what_is_opened_is_of_the_blocking_kind() -> None:
    assert inspect.signature(epochal.BlockingClient.writer).return_annotation is epochal.BlockingWriter
    with pytest.raises(ConfigError):
        epochal.connect_blocking("no url")


def round_trip(url: str, stream: str) -> None:
    threads = set(threading.enumerate())
    with epochal.connect_blocking(url) as client:
        assert client.catalog.get(*stream.split("/")).qualified == stream
        with client.subscribe(stream, encoding="msgpack") as sub, client.writer(stream, "w") as writer:
            sub.ready.wait(PATIENCE)
            assert sub.ready.is_set()
            epochs = sub.epochs(timeout=0.2)  # load: it is to end
            with pytest.raises(TimedOut):
                next(epochs)
            assert writer.writer_id == "w"
            writer.append_nowait(1, ["a"])
            writer.append(2, ["b"])
            assert writer.held == (0,)
            assert set(writer.pending_epochs) == {1, 2}
            writer.advance(3)
            with pytest.raises(CapabilityError):
                writer.append(2, ["late"])
            writer.finish()
            epochs = sub.epochs(timeout=PATIENCE)
            assert [(epoch.time, list(epoch.records())) for epoch in epochs if isinstance(epoch, epochal.Epoch)] == [
                (1, ["a"]),
                (2, ["b"]),
            ]
            assert next(epochs, None) is None
            assert sub.frontier() == ()
            assert sub.saw_whole(1)
            assert sub.cursor().positions
        with pytest.raises(UsageError, match="by epochs"):
            next(sub.events())
        with pytest.raises(StreamNotFound):
            client.writer("test/none", wait=0).__enter__()
    assert set(threading.enumerate()) <= threads
    client.close()
    with pytest.raises(UsageError, match="closed"):
        client.subscribe(stream)


async def test_a_stream_written_and_read_without_a_loop(services) -> None:
    await asyncio.to_thread(round_trip, services.url, await services.stream())


def many_threads(url: str, stream: str) -> None:
    with epochal.connect_blocking(url) as client, client.subscribe(stream, since="start") as sub:
        with client.writer(stream) as writer, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: writer.append(0, [number]), range(80)))
            writer.finish()
        epochs = sub.epochs(timeout=PATIENCE)
        with ThreadPoolExecutor(4) as pool:
            read: list[Any] = [epoch for part in pool.map(lambda _: list(epochs), range(4)) for epoch in part]
    (epoch,) = read
    assert sorted(epoch.records()) == list(range(80))


async def test_several_threads_share_a_client(services) -> None:
    await asyncio.to_thread(many_threads, services.url, await services.stream())


def closed_under_a_reader(url: str, stream: str) -> None:
    threads = set(threading.enumerate())
    client = epochal.connect_blocking(url)
    sub = client.subscribe(stream).__enter__()
    sub.ready.wait(PATIENCE)
    began = threading.Event()

    def read() -> object:
        began.set()
        return next(sub.events())

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: [read() for _ in range(1000)])
        began.wait(PATIENCE)
        client.close()
        with pytest.raises(UsageError):
            future.result(PATIENCE)
    assert set(threading.enumerate()) <= threads


async def test_closing_ends_what_other_threads_wait_for(services) -> None:
    await asyncio.to_thread(closed_under_a_reader, services.url, await services.stream())


def test_a_callback_cannot_wait_for_the_client() -> None:
    told: list[Exception] = []

    def unreachable(reason: str) -> None:
        try:
            client.catalog.revision()
        except UsageError as error:
            told.append(error)

    # load: it is to end
    client = epochal.connect_blocking("http://127.0.0.1:1", patience=0.2, on_unreachable=unreachable)
    with client, pytest.raises(epochal.errors.CatalogUnavailable):
        client.catalog.list()
    assert "callback" in str(told[0])


@pytest.mark.rule("E4")
async def test_an_interrupt_ends_a_waiting_program_and_aborts_what_it_held(services) -> None:
    stream = await services.stream()
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as sub:
        child = await services.run(INTERRUPTED, stream)
        assert await child.stdout.readline() == b"reading\n"
        child.send_signal(signal.SIGINT)
        out, _ = await child.communicate()
        assert (child.returncode, out) == (0, b"interrupted 1\n")
        async with asyncio.timeout(PATIENCE):
            async for event in sub.events():
                if event == epochal.EpochAborted(1):
                    break


async def test_a_forked_process_is_asked_to_connect_again(services) -> None:
    stream = await services.stream()
    child = await services.run(FORKED, stream)
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"0\n")
    async with epochal.connect(services.url) as client, client.subscribe(stream, since="start") as sub:
        assert [list(epoch.records()) async for epoch in sub.epochs() if isinstance(epoch, epochal.Epoch)] == [
            ["parent"]
        ]


def test_a_program_that_forgets_to_close_ends() -> None:
    script = "import epochal; client = epochal.connect_blocking('http://127.0.0.1:1'); print('end')"
    ended = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, capture_output=True, env=dict(os.environ))
    assert (ended.returncode, ended.stdout) == (0, b"end\n")
