"""Commits reach the driver's writer over the loopback, one at a time, and are answered once it has acted."""

import asyncio
import socket

import pytest

from epochal.errors import CapabilityError, EpochalError, LocalProtocolError, RemoteProtocolError, Unavailable
from epochal_spark.commit_channel import Committed, HandoverServer, ask_to_begin, hand_over


async def test_a_commit_is_answered_after_the_writer_has_acted() -> None:
    seen: list[Committed] = []

    async def act(commit: Committed) -> None:
        await asyncio.sleep(0)
        seen.append(commit)

    server = HandoverServer(act)
    address = await server.start()
    commits = [Committed(0, 7, 3), Committed(1, None, 0), Committed(2, (1, (2, 3)), 5)]
    for commit in commits:
        await asyncio.to_thread(hand_over, address, commit)
        assert seen[-1] == commit
    assert seen == commits
    await server.close()


async def test_commits_do_not_overlap() -> None:
    running = 0

    async def act(_: Committed) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.01)
        running -= 1

    server = HandoverServer(act)
    address = await server.start()
    await asyncio.gather(*(asyncio.to_thread(hand_over, address, Committed(n, n, 1)) for n in range(5)))
    await server.close()


async def test_the_writers_error_is_raised_where_the_commit_runs() -> None:
    async def refuse(_: Committed) -> None:
        raise CapabilityError("it holds 9")

    server = HandoverServer(refuse)
    address = await server.start()
    with pytest.raises(CapabilityError, match="it holds 9"):
        await asyncio.to_thread(hand_over, address, Committed(0, 7, 3))
    with pytest.raises(RemoteProtocolError, match="token"):
        await asyncio.to_thread(hand_over, f"{address}0", Committed(0, 7, 3))
    await server.close()


async def nothing(_: Committed) -> None:
    """Stands for a commit that is not under test."""


async def test_another_exception_of_the_writer_is_reported_by_its_text() -> None:
    async def fail() -> None:
        raise KeyError("batch 3")

    server = HandoverServer(nothing, on_begin=fail)
    address = await server.start()
    with pytest.raises(LocalProtocolError, match=r"the query's writer failed: KeyError: 'batch 3'"):
        await asyncio.to_thread(ask_to_begin, address)
    await server.close()


async def test_a_writer_that_does_not_answer_in_time_is_distinguished_from_one_that_left() -> None:
    never = asyncio.Event()

    async def hang() -> None:
        await never.wait()

    server = HandoverServer(nothing, on_begin=hang)
    address = await server.start()
    with pytest.raises(Unavailable, match=r"did not answer within 0\.3 s, when a batch was begun"):
        await asyncio.to_thread(ask_to_begin, address, 0.3)
    never.set()
    await server.close()


async def test_a_writer_that_leaves_cuts_the_commit_off() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(_: Committed) -> None:
        begun.set()
        await never.wait()

    server = HandoverServer(hang)
    address = await server.start()
    waiting = asyncio.create_task(asyncio.to_thread(hand_over, address, Committed(4, 7, 3)))
    await begun.wait()
    await server.close()
    with pytest.raises(Unavailable, match="batch 4"):
        await waiting
    with pytest.raises(EpochalError, match="batch 5"):
        await asyncio.to_thread(hand_over, address, Committed(5, 7, 3))
    never.set()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"\x00" * 70_000, b"[]\n", b'{"token": 1}\n'])
async def test_what_is_no_commit_changes_nothing(line: bytes) -> None:
    async def fail(_: Committed) -> None:
        raise AssertionError

    server = HandoverServer(fail)
    port = int((await server.start()).partition("/")[0].rpartition(":")[2])

    def send() -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(line)
            connection.recv(1000)

    await asyncio.to_thread(send)
    await server.close()
