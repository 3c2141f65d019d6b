"""One HTTP connection with its deadlines, and the gate that bounds how many there are.

The HTTP library has neither, and a middleware does not see a connection that never sends a request. It extends the
library's protocol class, and only by its public methods.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from aiohttp import web

from epochal.service import problems
from epochal.service.process import file_limit
from epochal.service.settings import ServiceSettings

_MAX_FIELD = 8190
"""Bytes of one header; other servers have the same limit."""
_MAX_HEADERS = 100
_LINGER = 1.0
"""Seconds for which the rest of a refused body is still read, so that its sender gets the answer."""
GRACE = 1.0
"""Seconds that a new connection has for its first request before it counts as idle."""
_OTHER_FILES = 128
"""File descriptors that are reserved for everything except HTTP connections."""
_QUIET: dict[str, Any] = {"access_log": None}

_InOrder: TypeAlias = "dict[TimedConnection, None]"
"""Connections, the oldest first."""


class Gate:
    """Counts connections, and makes room for a new one where it can.

    An idle connection gives way to a new one, the one that has been idle longest first: at the limit of one address
    one of that address, else any. A connection is not idle while its client has not read all of its last answer. If
    none is idle, the new one is above the limit and counts as spare; the oldest spare one is cut for a newer one.
    """

    def __init__(self, settings: ServiceSettings, refused: Callable[[str], None]) -> None:
        self.settings = settings
        self.refused = refused
        self.limit = max(1, min(settings.max_connections, file_limit() - settings.spare_connections - _OTHER_FILES))
        """Connections in all: the setting, or fewer when the system grants fewer files."""
        self._inside: dict[TimedConnection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._idle: _InOrder = {}
        self._idle_by_address: dict[str, _InOrder] = {}
        self._spare: _InOrder = {}

    def __len__(self) -> int:
        """The number of open connections."""
        return len(self._inside) + len(self._spare)

    def enter(self, connection: "TimedConnection", address: str) -> str:
        """Count a new connection; returns the name of the limit that it is above, empty when it is within all."""
        beyond = ""
        if self._by_address[address] >= self.settings.max_connections_per_address:
            beyond = self._make_room("connections_per_address", self._idle_by_address.get(address, {}))
        if not beyond and len(self._inside) >= self.limit:
            beyond = self._make_room("connections", self._idle)
        if not beyond:
            self._inside[connection] = address
            self._by_address[address] += 1
            return ""
        if len(self._spare) >= self.settings.spare_connections:
            next(iter(self._spare)).cut(beyond)
        self._spare[connection] = None
        return beyond

    def _make_room(self, limit: str, idle: "_InOrder") -> str:
        """Cut the connection that has been idle longest; returns the limit if there is none."""
        for connection in idle:
            if connection.all_sent:
                connection.cut("idle_" + limit)
                return ""
        return limit

    def idle(self, connection: "TimedConnection") -> None:
        """From now on the connection only waits for a request: it gives way to a new one."""
        address = self._inside.get(connection)
        if address is not None:
            self._idle[connection] = None
            self._idle_by_address.setdefault(address, {})[connection] = None

    def busy(self, connection: "TimedConnection") -> None:
        """A request has come, or its answer is not taken. Of the spare connections, this one is now cut last."""
        self._not_idle(connection)
        if connection in self._spare:
            del self._spare[connection]
            self._spare[connection] = None

    def _not_idle(self, connection: "TimedConnection") -> None:
        if connection in self._idle:
            del self._idle[connection]
            address = self._inside[connection]
            del self._idle_by_address[address][connection]
            if not self._idle_by_address[address]:
                del self._idle_by_address[address]

    def leave(self, connection: "TimedConnection") -> None:
        """Stop counting a connection. Calling it again does nothing."""
        self._not_idle(connection)
        self._spare.pop(connection, None)
        address = self._inside.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class TimedConnection(web.RequestHandler):
    """A connection that is cut when a head does not come, an answer is not read, or nothing happens for too long.

    The time for a head runs from the start of the connection, and later from the first byte after an answer, until
    `serving`; `served` starts the time for the next request.
    """

    def __init__(self, server: web.Server, gate: Gate) -> None:
        settings = gate.settings
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=settings.idle_timeout,
            max_line_size=settings.max_line,
            max_field_size=_MAX_FIELD,
            max_headers=_MAX_HEADERS,
            lingering_time=_LINGER,
            auto_decompress=False,  # unpacking blocks the loop: a third of a second for 200 KiB of zeros
            **_QUIET,
        )
        self.beyond = ""
        """The limit that this connection is above, or empty. Above one, it gets only health and metrics."""
        self._gate = gate
        self._wire: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._new: asyncio.TimerHandle | None = None
        self._between = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection starts, and the time for its first head."""
        self._wire = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.beyond = self._gate.enter(self, str(peer[0]) if peer else "")
        super().connection_made(transport)
        self._wait("header_timeout", self._gate.settings.header_timeout)
        self._new = self._loop.call_later(GRACE, self._gate.idle, self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self._gate.leave(self)
        self._end_grace()
        self._stop_waiting()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; between requests, they start a head."""
        if self._between:
            self._between = False
            self._wait("header_timeout", self._gate.settings.header_timeout)
        super().data_received(data)

    def pause_writing(self) -> None:
        """The peer reads too slowly; from now on it has a deadline."""
        settings = self._gate.settings
        self._writing = self._loop.call_later(settings.write_timeout, self.cut, "write_timeout")
        self._gate.busy(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._stop_writing()
        if self._between:
            self._gate.idle(self)
        super().resume_writing()

    @property
    def all_sent(self) -> bool:
        """Whether the system has taken all that was written: cutting the connection loses nothing of an answer."""
        return self._wire is None or not self._wire.get_write_buffer_size()

    def serving(self) -> None:
        """A whole head has come."""
        self._end_grace()
        self._gate.busy(self)
        self._between = False
        self._stop_waiting()

    def served(self) -> None:
        """The answer was made. The library closes idle connections; this deadline is for those that it cannot close."""
        self._between = True
        if self._writing is None:
            self._gate.idle(self)
        settings = self._gate.settings
        self._wait("idle_timeout", settings.idle_timeout + settings.write_timeout)

    def cut(self, reason: str) -> None:
        """End the connection at once, and count why."""
        self._gate.refused(reason)
        self._gate.leave(self)
        if self._wire is not None:
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what cannot be read as HTTP with a problem document. It is not logged, because anyone can send it."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        self._gate.refused("malformed_http")
        detail = " ".join((message or "this is not HTTP/1.1").split())
        response = problems.answer(status, "malformed_http", detail[:300])
        response.force_close()
        return response

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log a bug. A body that cannot be read is not a bug, since anyone can send one, and was answered already."""
        if not isinstance(more.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **more)

    def _wait(self, reason: str, seconds: float) -> None:
        self._stop_waiting()
        self._waiting = self._loop.call_later(seconds, self.cut, reason)

    def _end_grace(self) -> None:
        if self._new is not None:
            self._new.cancel()
            self._new = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
