"""Cuts connections that do not send a whole request head in time.

Apart from the server because the HTTP library has no such deadline and no middleware can see half a header: this wraps
the protocol of each connection, below the library and without touching its insides.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast


class _Inner(Protocol):
    """What a connection's protocol must offer to be wrapped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> Any: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Deadline(asyncio.Protocol):
    """Passes everything on to the wrapped protocol, and aborts the connection when a head takes longer than `seconds`.

    The time runs from the connection's start, and later from the first byte after an answer, until `head_done`.
    """

    def __init__(self, inner: object, seconds: float) -> None:
        self._inner = cast(_Inner, inner)
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._serving = 0
        self._abort: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection begins, and with it the time for its first head."""
        self._abort = cast(asyncio.Transport, transport).abort
        self._start()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self._stop()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; outside a request they begin a head."""
        if not self._serving and self._timer is None:
            self._start()
        self._inner.data_received(data)

    def eof_received(self) -> Any:
        """The peer sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._inner.resume_writing()

    def head_done(self) -> None:
        """A whole head has come: the request is being served."""
        self._serving += 1
        self._stop()

    def served(self) -> None:
        """The answer is made; the library's idle time-out takes over."""
        self._serving -= 1

    def _start(self) -> None:
        if self._abort is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
