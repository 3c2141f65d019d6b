"""Collects facts for `epochal doctor`: the catalog over HTTP, publishers' ports with a real handshake, this machine.

Every probe ends: nothing here waits longer than its time-out.
"""

import asyncio
import contextlib
import importlib.metadata
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
import zmq
from zmq.utils.monitor import recv_monitor_message

from epochal.cli.io.documents import Documents
from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol import wire

SOCKETS: Mapping[str, int] = {"events": zmq.SUB, "requests": zmq.DEALER, "ingest": zmq.DEALER}
"""The socket type that a client connects to each of a publisher's ZeroMQ ports."""


@dataclass(frozen=True, slots=True)
class CatalogSeen:
    """What a catalog answers: `skew` is its clock less ours in seconds, within one; `problem` why it is not ready."""

    seconds: float
    skew: float | None
    version: str | None
    problem: str = ""


async def look_at_catalog(url: str, timeout: float) -> CatalogSeen:
    """Query the catalog once; raises `aiohttp.ClientError`, `OSError` or `TimeoutError` when there is no answer."""
    async with asyncio.timeout(timeout), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/healthz") as response:  # makes the connection, whose time is not measured
            await response.read()
        before = time.monotonic()
        async with session.get(f"{url}/readyz") as response:
            text = await response.text()
        seconds = time.monotonic() - before
        skew = _skew(response.headers.get("Date"), seconds)
        problem = "" if response.status == 200 else f"answers {response.status}: {text.strip()[:200]}"
        async with session.get(f"{url}/openapi.json") as document:
            version = _version(await document.json(content_type=None)) if document.status == 200 else None
    return CatalogSeen(seconds, skew, version, problem)


async def named_directory(url: str, timeout: float) -> Path | None:
    """The data directory that a catalog of local mode names; None if it does not name one.

    Raises `EpochalError` or `TimeoutError` when there is no answer.
    """
    async with asyncio.timeout(timeout), Documents(url, patience=0.0, timeout=timeout) as documents:
        named = (await documents.one("/v1/streams/$catalog")).get("data")
    return Path(named) if isinstance(named, str) and named else None


def _version(document: object) -> str | None:
    info = document.get("info") if isinstance(document, dict) else None
    version = info.get("version") if isinstance(info, dict) else None
    return version if isinstance(version, str) else None


def _skew(date: str | None, seconds: float) -> float | None:
    """Seconds that the catalog's clock is ahead of ours; None without a date.

    The header has whole seconds, so half a second is added. It was written about in the middle of the request.
    """
    try:
        theirs = parsedate_to_datetime(date or "").timestamp() + 0.5
    except ValueError:
        return None
    return theirs - (datetime.now(UTC).timestamp() - seconds / 2)


# ---- publishers ----


async def reach(address: str, socket: str, timeout: float) -> str | None:
    """Why a client cannot use a publisher's `events`, `requests`, `ingest` or `http`; None when it can."""
    if socket == "http":
        return await _get(f"{address}/healthz", timeout)
    try:
        async with asyncio.timeout(timeout + 1.0):  # a name that does not resolve blocks the thread, not us
            return await asyncio.to_thread(_handshake, address, SOCKETS.get(socket, zmq.DEALER), timeout)
    except TimeoutError:
        return f"no answer within {timeout:g} s"


async def _get(url: str, timeout: float) -> str | None:
    try:
        async with asyncio.timeout(timeout), aiohttp.ClientSession() as session, session.get(url) as response:
            return None if response.status == 200 else f"answers {response.status}"
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return reason(error)


def reason(error: BaseException) -> str:
    """Why there was no answer, in a few words."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return str(error) or type(error).__name__


def _handshake(address: str, kind: int, timeout: float) -> str | None:
    """Connect as a client does, until the other side has said that it speaks ZeroMQ's protocol."""
    with contextlib.ExitStack() as stack:
        socket = _socket(stack, kind)
        monitor = socket.get_monitor_socket()
        stack.callback(monitor.close, 0)
        stack.callback(socket.disable_monitor)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            return f"is no address: {error}"
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0 and monitor.poll(int(1000 * left)):
            event = recv_monitor_message(monitor)
            match event["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return None
                case zmq.EVENT_CLOSED:
                    return f"connection refused ({os.strerror(event['value'])})" if event["value"] else "refused"
                case (
                    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
                ):
                    return "something answers, but not as a publisher does: is the address still its own?"
        return f"no handshake within {timeout:g} s: is there a firewall in between?"


def _socket(stack: contextlib.ExitStack, kind: int) -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.destroy, linger=0)
    socket = context.socket(kind)
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.IPV6, 1)
    return socket


async def greet(address: str, uid: str, segment: str, timeout: float) -> str | None:
    """Ask the publisher of a segment for its welcome; why there is none, or None. It forgets the hello by itself."""
    try:
        async with asyncio.timeout(timeout + 1.0):
            return await asyncio.to_thread(_hello, address, uid, segment, timeout)
    except TimeoutError:
        return f"no welcome within {timeout:g} s"


def _hello(address: str, uid: str, segment: str, timeout: float) -> str | None:
    with contextlib.ExitStack() as stack:
        socket = _socket(stack, zmq.DEALER)
        try:
            socket.connect(address)
            for frames in wire.encode(m.Hello(1, (m.VERSION,), uid, segment, secrets.token_bytes(16))):
                socket.send_multipart(frames)
            if not socket.poll(int(1000 * timeout)):
                return f"no welcome within {timeout:g} s"
            for message in wire.decode(socket.recv_multipart()):
                return None if isinstance(message, m.Welcome) else f"refuses: {getattr(message, 'detail', message)}"
        except (zmq.ZMQError, EpochalError) as error:
            return str(error)
        return "sent an empty message"


# ---- this machine ----


def java_major(timeout: float) -> int | None:
    """The major version of the Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(match.group(1)) if match else None


def installed(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class DirectorySeen:
    """The state of a data directory. `holder`: the running process that its lock names."""

    path: Path
    exists: bool
    writable: bool
    free_bytes: int
    holder: int | None


def look_at_directory(path: Path) -> DirectorySeen:
    """Look at a data directory; nothing is created."""
    path = path.absolute()
    if not path.is_dir():
        return DirectorySeen(path, path.exists(), False, 0, None)
    holder = None
    with contextlib.suppress(OSError, ValueError):
        number = int((path / "lock").read_text().split()[0])
        os.kill(number, 0)
        holder = number
    return DirectorySeen(path, True, os.access(path, os.W_OK | os.X_OK), shutil.disk_usage(path).free, holder)
