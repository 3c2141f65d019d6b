"""Reports Spark's steps in other processes (plan a batch, commit, abort) to the writer that holds the capability.

Each report is one loopback connection, answered once the writer has acted.

Both ends are here, since they must agree. Spark's own progress reports come late and asynchronously, so that a crash
between a commit and its report would lose the advance. Here Spark records the commit only after the answer, and repeats
it after a crash. Each side sends one line of JSON. The token in the address keeps other users of the machine from
completing epochs.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from epochal.errors import EpochalError, LocalProtocolError, RemoteProtocolError, Unavailable, from_code
from epochal.protocol.times import Time, from_json, to_json

COMMIT_TIMEOUT = 120.0
"""Seconds that a commit waits for its answer: longer than publishers take to restart."""

MAX_LINE = 1 << 16


class Handed(NamedTuple):
    """A trace context as text (W3C Trace Context), for options and between processes."""

    traceparent: str
    tracestate: str = ""


class HeldCapability(NamedTuple):
    """The address of the process that holds a batch job's capability, and the job's trace context."""

    address: str
    trace: Handed | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A micro-batch with all records acknowledged; `greatest` is the join of its times, None without records."""

    batch: int
    greatest: Time | None
    records: int


class HandoverServer:
    """The writer's end.

    `on_commit` is awaited before a commit is answered, and `on_abort` before an abort. `on_begin` is awaited before the
    tasks of a batch may run; its result is passed to them. Only one of these runs at a time, in order.
    """

    def __init__(
        self,
        on_commit: Callable[[Committed], Awaitable[None]],
        on_abort: Callable[[], Awaitable[None]] | None = None,
        on_begin: Callable[[], Awaitable[Handed | None]] | None = None,
    ) -> None:
        self._on_commit = on_commit
        self._on_abort = on_abort
        self._on_begin = on_begin
        self._token = secrets.token_hex(16)
        self._turn = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._answered = asyncio.Event()

    async def start(self) -> str:
        """Listen on a free port of the loopback; returns the address for the option `handover`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_LINE)
        port = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}/{self._token}"

    async def settle(self, patience: float = 5.0) -> None:
        """Wait until every open request is answered, up to `patience` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._open:
                    self._answered.clear()
                    await self._answered.wait()

    async def close(self) -> None:
        """Stop listening; a commit that still waits fails, so its batch is not committed."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            pass  # the other end has gone, or does not speak this protocol
        finally:
            self._open.discard(writer)
            self._answered.set()
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        request = json.loads(line)
        if not isinstance(request, dict) or not hmac.compare_digest(str(request.get("token")), self._token):
            return _refusal(RemoteProtocolError("wrong token"))
        try:
            async with self._turn:
                answer = await self._act(request)
        except EpochalError as error:
            return _refusal(error)
        except Exception as error:  # without an answer the caller would report that the writer has left
            return _refusal(LocalProtocolError(f"the query's writer failed: {type(error).__name__}: {error}"))
        return {"ok": True, **answer}

    async def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("abort") is True:
            if self._on_abort is None:
                raise RemoteProtocolError("a query is not aborted by a batch")
            await self._on_abort()
            return {}
        if request.get("begin") is True:
            handed = None if self._on_begin is None else await self._on_begin()
            return {} if handed is None else {"trace": handed}
        greatest = None if request["greatest"] is None else from_json(request["greatest"])
        await self._on_commit(Committed(int(request["batch"]), greatest, int(request["records"])))
        return {}


def hand_over(address: str, committed: Committed, timeout: float = COMMIT_TIMEOUT) -> None:
    """Report a commit to the writer, and wait until it has acted.

    Raises the writer's error, or `Unavailable` when it is gone.
    """
    greatest = None if committed.greatest is None else to_json(committed.greatest)
    request = {"batch": committed.batch, "greatest": greatest, "records": committed.records}
    _send(address, request, f"batch {committed.batch} was committed", timeout)


def ask_to_begin(address: str, timeout: float = COMMIT_TIMEOUT) -> Handed | None:
    """Ask whether the batch that is planned now may run, before its tasks start; returns its trace context.

    Raises the reason why not, or `Unavailable` when the writer is gone.
    """
    answer = _send(address, {"begin": True}, "a batch was begun", timeout).get("trace")
    return None if answer is None else Handed(*answer)


def call_off(address: str, timeout: float = COMMIT_TIMEOUT) -> None:
    """Report to the writer that the job failed, and wait until every epoch that it appended at is aborted.

    Raises `Unavailable` when it is gone: then it has aborted them, or the publishers will after their time-out.
    """
    _send(address, {"abort": True}, "the job was called off", timeout)


def _send(address: str, request: dict[str, Any], what: str, timeout: float) -> dict[str, Any]:
    place, _, token = address.partition("/")
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout) as connection:
            connection.sendall(json.dumps({**request, "token": token}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline(MAX_LINE)
    except TimeoutError:
        raise Unavailable(
            f"the writer that holds the capability did not answer within {timeout:g} s, when {what}; `epochal describe "
            "stream` says what it waits for"
        ) from None
    except OSError as error:
        raise Unavailable(f"the writer that holds the capability left before {what}: {error}") from None
    if not line:
        raise Unavailable(f"the writer that holds the capability left before {what}")
    answer: dict[str, Any] = json.loads(line)
    if not answer.get("ok"):
        raise from_code(str(answer.get("code")), str(answer.get("detail")))
    return answer


def _refusal(error: EpochalError) -> dict[str, Any]:
    return {"ok": False, "code": error.code, "detail": str(error)}
