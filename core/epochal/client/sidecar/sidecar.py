"""A writer's way to publishers through a sidecar: chosen when the writer opens, never changed while it is open.

With EPOCHAL_SIDECAR set, a writer sends its questions for the catalog to that process, and reaches publishers through
it. If the sidecar does not answer, publishers are found through the catalog, as without it, unless
EPOCHAL_SIDECAR_REQUIRED is true.

Sources: E1, E6, E10; docs/sidecar.md.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final, Self

import zmq

from epochal.catalog_api.answers import StreamInfo, WriterSession
from epochal.client.catalog.answers import get, read
from epochal.client.metrics import fell_back
from epochal.client.sidecar.connections import Use, connections
from epochal.errors import ConfigError, EpochalError, RemoteProtocolError, SidecarUnavailable, from_code
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.wire import Frames
from epochal.transport.sockets import Socket

logger = logging.getLogger("epochal.client")

ANSWERS_WITHIN = 2.0
"""Seconds within which a running sidecar answers the greeting, unless EPOCHAL_SIDECAR_TIMEOUT says otherwise."""
MOST_TIMEOUT = 300.0
"""Seconds that EPOCHAL_SIDECAR_TIMEOUT may be: a writer that opens waits no longer for a sidecar that is silent."""
TRIED_EVERY = 0.1
"""Seconds between two tries, where nothing listens and the sidecar is required."""
NOT_ASKED_AGAIN = 30.0
"""Seconds for which this process does not ask a sidecar that did not answer again, where it is not required."""
ASK_TIMEOUT = 30.0
"""Seconds for an answer of the catalog through the sidecar, beyond what the question itself waits for."""
OVERTAKEN_WITHIN = 1.0
"""Seconds after a writer has its session number in which, if it is fenced, it may ask for another."""
LINGER_MS: Final = 100
"""Milliseconds to send the last message to a sidecar, which is on the same machine."""
PACK: Final = 240 * 1024
"""Bytes that are packed into one zmq message: fewer and larger ones pass through two processes at less cost."""
MAX_IPC_PATH: Final = 107
"""Bytes of the path of a Unix socket."""

_TRUE, _FALSE = ("true", "1", "yes"), ("", "false", "0", "no")

_absent: dict[tuple[int, str], float] = {}
"""Until when a sidecar is not asked again, by process and address: a forked child asks for itself."""
fallbacks: dict[int, int] = {}
"""How often writers published without a sidecar that was named, by process id."""


class Way(StrEnum):
    """How a writer reaches publishers."""

    DIRECT = "direct"
    SIDECAR = "sidecar"


def check_address(address: str, variable: str = "EPOCHAL_SIDECAR") -> str:
    """Return the address; raises `ConfigError` for one that is not on this machine."""
    form = "write ipc:///DIRECTORY/NAME, or tcp://127.0.0.1:PORT"
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "ipc":
        if not rest.startswith("/") or rest.endswith("/"):
            raise ConfigError(f"{variable}={address}: an absolute path follows ipc://; {form}")
        size = len(rest.encode())
        if size > MAX_IPC_PATH:
            raise ConfigError(
                f"{variable}={address}: a path of {size} bytes; a Unix socket's has at most {MAX_IPC_PATH}"
            )
        return address
    if separator and scheme == "tcp":
        host, colon, port = rest.rpartition(":")
        if colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536 and _is_loopback(host):
            return address
        raise ConfigError(f"{variable}={address}: a sidecar is on this machine; {form}")
    raise ConfigError(f"{variable}={address}: is no address of a sidecar; {form}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """What the environment says about the sidecar."""

    address: str
    required: bool
    pod: str
    timeout: float = ANSWERS_WITHIN

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """EPOCHAL_SIDECAR, EPOCHAL_SIDECAR_REQUIRED and _TIMEOUT, EPOCHAL_POD_UID; None where no sidecar is named.

        Raises `ConfigError`, which names the variable and what would be right.
        """
        required = environment.get("EPOCHAL_SIDECAR_REQUIRED", "").strip().lower()
        if required not in (*_TRUE, *_FALSE):
            raise ConfigError(f"EPOCHAL_SIDECAR_REQUIRED={required}: write true or false")
        address = environment.get("EPOCHAL_SIDECAR", "").strip()
        if not address:
            if required in _TRUE:
                raise ConfigError("EPOCHAL_SIDECAR_REQUIRED is true, and EPOCHAL_SIDECAR names none; set it too")
            return None
        pod = environment.get("EPOCHAL_POD_UID", "")
        return cls(check_address(address), required in _TRUE, pod, _timeout(environment))


def _timeout(environment: Mapping[str, str]) -> float:
    text = environment.get("EPOCHAL_SIDECAR_TIMEOUT", "").strip()
    try:
        seconds = float(text) if text else ANSWERS_WITHIN
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MOST_TIMEOUT:
        raise ConfigError(f"EPOCHAL_SIDECAR_TIMEOUT={text}: write seconds, more than 0 and at most {MOST_TIMEOUT:g}")
    return seconds


async def find(options: SidecarOptions | None, opening: m.Ask | None = None) -> "Sidecar | None":
    """The sidecar, if it answers and is the one of this pod; None to publish without one.

    `opening` is what will be asked first: it is sent with the greeting, which saves a round trip. Raises
    `SidecarUnavailable` where a sidecar is required.
    """
    if options is None:
        return None
    place = (os.getpid(), options.address)
    if not options.required and time.monotonic() < _absent.get(place, 0.0):
        _fell_back()
        return None
    began = time.monotonic()
    sidecar = Sidecar(options)
    try:
        await sidecar.greet(opening)
    except SidecarUnavailable as error:
        away = sidecar.away
        await sidecar.close()
        if options.required:
            if not away:
                raise
            return await _return_of(options, opening, began + options.timeout)
        _absent[place] = time.monotonic() + NOT_ASKED_AGAIN
        _fell_back()
        logger.warning("publishing without a sidecar: %s", error)
        return None
    except BaseException:
        await sidecar.close()
        raise
    _absent.pop(place, None)
    return sidecar


async def _return_of(options: SidecarOptions, opening: m.Ask | None, until: float) -> "Sidecar":
    """Try again until `until`: a killed sidecar comes back soon, and Spark runs a failed task only a few times."""
    while True:
        await asyncio.sleep(TRIED_EVERY)
        sidecar = Sidecar(options)
        try:
            await sidecar.greet(opening)
            return sidecar
        except BaseException as error:
            away = isinstance(error, SidecarUnavailable) and sidecar.away
            await sidecar.close()
            if not away or time.monotonic() > until:
                raise


def _fell_back() -> None:
    fallbacks[os.getpid()] = fallbacks.get(os.getpid(), 0) + 1
    fell_back()


class Sidecar:
    """One writer's view of the sidecar: asked over a connection that the writer has while it is open."""

    def __init__(self, options: SidecarOptions) -> None:
        self.address = options.address
        self._pod = options.pod
        self._timeout = options.timeout
        self.instance = ""
        self._requests = itertools.count(1)
        self._futures: dict[int, asyncio.Future[m.Message]] = {}
        self._ahead: tuple[m.Ask, int] | None = None
        """The question that was sent together with the greeting, and its request number."""
        self._socket: Socket | None = None
        self._lost: SidecarUnavailable | None = None
        self._gave_up = False
        """Whether a caller stopped waiting for an answer, which may still come: then the connection is not kept."""
        self.away = False
        """Whether nothing listens there, or it has ended since."""

    async def greet(self, opening: m.Ask | None = None) -> None:
        """Connect, and check that it is the right one; raises `SidecarUnavailable`.

        `opening` is sent with the greeting; its answer is kept for an `ask` of the same question.
        """
        try:
            self._socket = connections().take(self.address, Use.QUESTIONS, self._received, None, self._gone)
        except zmq.ZMQError as error:
            raise self.unavailable(f"it cannot be connected to: {error}") from None
        try:
            request = self._begin(m.Greet(0, (m.VERSION,), self._pod))
            if opening is not None:
                self._ahead = opening, self._begin(opening)
            answer = await self._answered(request, self._timeout)
        except SidecarUnavailable:
            raise
        except EpochalError as error:
            raise self.unavailable(str(error)) from None
        if not isinstance(answer, m.Greeted):
            raise self.unavailable("something else answers there")
        if answer.version != m.VERSION:
            raise self.unavailable(f"it speaks version {answer.version} of the protocol, this program {m.VERSION}")
        if self._pod and answer.pod and self._pod != answer.pod:
            raise self.unavailable(f"it is that of another pod ({answer.pod}); this one is {self._pod}")
        self.instance = answer.instance

    def _gone(self) -> None:
        self.away = True
        self._fail("the connection to it was lost")

    def unavailable(self, reason: str) -> SidecarUnavailable:
        """The error for the application, which says what to do."""
        return SidecarUnavailable(
            f"the sidecar at {self.address} cannot be used: {reason}; is `epochal-publisher sidecar` running there? "
            "Else unset EPOCHAL_SIDECAR"
        )

    async def close(self) -> None:
        """Give the connection back, if no answer is owed on it; calls that still wait raise `SidecarUnavailable`."""
        if self._socket is not None:
            if self._futures or self._gave_up or self._lost is not None:
                self._socket.close()
            else:
                connections().give_back(self.address, Use.QUESTIONS, self._socket)
            self._socket = None
        self._fail("the writer was closed")

    # ---- what a writer asks of a catalog ----

    async def ask(self, asked: m.Ask) -> m.Answer:
        """The catalog's answer; raises what it says instead, or `SidecarUnavailable`."""
        ahead, self._ahead = self._ahead, None
        request = ahead[1] if ahead is not None and ahead[0] == asked else self._begin(asked)
        answer = await self._answered(request, asked.wait + ASK_TIMEOUT)
        if not isinstance(answer, m.Answer):
            raise RemoteProtocolError(f"a sidecar does not answer a question with {type(answer).__name__}")
        return answer

    def left(self, stream: str, writer: str, session: int) -> None:
        """Report that a session has left every segment, so that the sidecar can ask for the next number ahead."""
        if self._lost is None and self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):  # it only saves time: nothing depends on it
                self._socket.send([b"", *wire.encode(m.Left(stream, writer, session))[0]])

    def _begin(self, question: m.Greet | m.Ask) -> int:
        """Send a question; returns its request, for `_answered`."""
        if self._lost is not None:
            raise self._lost
        assert self._socket is not None
        request = next(self._requests)
        try:
            self._socket.send([b"", *wire.encode(question._replace(request=request))[0]])
        except zmq.ZMQError as error:
            raise self.unavailable(str(error)) from None
        future = self._futures[request] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        return request

    async def _answered(self, request: int, patience: float) -> m.Message:
        future = self._futures[request]
        try:
            async with asyncio.timeout(patience):
                return await future
        except TimeoutError:
            raise self.unavailable(f"it has not answered for {patience:g} s") from None
        finally:
            self._gave_up |= future.cancelled()
            del self._futures[request]

    def _received(self, frames: Frames) -> None:
        try:
            if frames[0]:
                raise RemoteProtocolError("a message without an empty frame before it")
            for message in wire.decode(frames[1:]):
                self._take(message)
        except EpochalError as error:
            self._fail(f"it answers what is no answer ({error})")

    def _take(self, message: m.Message) -> None:
        match message:
            case m.Greeted() | m.Answer():
                future = self._futures.get(message.request)
                if future is not None and not future.done():
                    future.set_result(message)
            case m.Refused():
                future = self._futures.get(message.op)
                if future is None:
                    self._fail(message.detail)
                elif not future.done():
                    future.set_exception(from_code(message.code, message.detail))
            case _:
                raise RemoteProtocolError(f"a sidecar does not send {type(message).__name__} here")

    def _fail(self, reason: str) -> None:
        if self._lost is None:
            self._lost = self.unavailable(reason)
        for future in self._futures.values():
            if not future.done():
                future.set_exception(self._lost)


def _seen(future: "asyncio.Future[m.Message]") -> None:
    """Have asyncio not warn about an error that no one awaited."""
    if not future.cancelled():
        future.exception()


def opening(
    stream: str, writer: str, wait: float, time: str | None, encoding: str | None, schema: Mapping[str, Any] | None
) -> m.Ask:
    """What a writer asks to open: the stream ("namespace/name"), with all publishers, and its session."""
    text = "" if schema is None else json.dumps(schema, separators=(",", ":"))
    return m.Ask(0, m.AskKind.OPEN, stream, writer, (time or "", encoding or "", text), wait)


class SidecarCatalog:
    """What a writer needs from the catalog, asked through the sidecar: opening takes one round trip."""

    def __init__(self, sidecar: Sidecar, writer: str) -> None:
        self._sidecar = sidecar
        self._writer = writer
        self._session: WriterSession | None = None
        """The one that came with the look-up, for the first call of `session`."""
        self._given_ahead = float("-inf")
        """When the last session came, if the sidecar had asked for it ahead."""

    async def lookup(
        self,
        namespace: str,
        name: str,
        *,
        wait: float = 0.0,
        time: str | None = None,
        encoding: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> StreamInfo:
        """As `CatalogClient.lookup`."""
        answer = await self._sidecar.ask(opening(f"{namespace}/{name}", self._writer, wait, time, encoding, schema))
        self._session = self._read(answer)
        return _looked_up(answer.payload)

    async def get(self, namespace: str, name: str) -> StreamInfo:
        """As `CatalogClient.get`."""
        answer = await self._sidecar.ask(m.Ask(0, m.AskKind.GET, f"{namespace}/{name}", "", (), 0.0))
        return _looked_up(answer.payload)

    async def another(self, namespace: str, name: str, segment: str, token: int, wait: float) -> None:
        """None: a sidecar answers at once."""

    async def forget_writer(self, namespace: str, name: str, writer: str, session: int) -> None:
        """Nothing: a sidecar does not ask the catalog to forget writers."""

    async def session(self, namespace: str, name: str, writer: str) -> WriterSession:
        """As `CatalogClient.session`."""
        session, self._session = self._session, None
        if session is not None and writer == self._writer:
            return session
        return self._read(await self._sidecar.ask(m.Ask(0, m.AskKind.SESSION, f"{namespace}/{name}", writer, (), 0.0)))

    def may_be_overtaken(self) -> bool:
        """Whether a newer session may have opened before this writer got its number, which was asked for ahead.

        A writer that opens later than OVERTAKEN_WITHIN after it has its number is fenced as without a sidecar: most
        likely by one that has opened since.
        """
        return time.monotonic() - self._given_ahead < OVERTAKEN_WITHIN

    def _read(self, answer: m.Answer) -> WriterSession:
        session = _json(answer.session)
        self._given_ahead = time.monotonic() if session.get("ahead") is True else float("-inf")
        return read(WriterSession.from_json, session)


@functools.lru_cache(64)
def _looked_up(payload: bytes) -> StreamInfo:
    """A look-up as a value; cached, because a worker's next task mostly gets the same one."""
    found = _json(payload)
    segments = {"segments": get(found, "segments", list)} if "segments" in found else {}
    return read(StreamInfo.from_json, {**get(found, "stream", dict), **segments})


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RemoteProtocolError("a sidecar's answer is no JSON object")
    return found
