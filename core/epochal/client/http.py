"""One HTTP call: tried again while nobody answers, bounded in time, with errors as values of `epochal.errors`.

Apart from the catalog's calls because it knows nothing of streams; it is the one place that decides what is worth
another try. Only failures to get an answer are: an answer, also one that says no, is final.
"""

import asyncio
import json as json_module
import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
from yarl import URL

from epochal.errors import (
    CatalogUnavailable,
    ConfigError,
    EpochalError,
    ManifestError,
    Problem,
    RemoteProtocolError,
    SchemaMismatch,
    from_code,
)

FIRST_DELAY, MAX_DELAY = 0.05, 3.0
"""Seconds between tries: doubled each time, with full jitter so that many clients do not come back at once."""

_GATEWAY = (502, 503, 504)
"""Statuses of a proxy before a catalog that is away."""

_AGAIN = ("overloaded", "shutting_down", "store_unavailable")
"""Codes by which a catalog says that it did nothing and that the same call may do soon."""


class _NoAnswer(Exception):
    """Somebody answered, but not a catalog that could say yes or no."""


class HttpCaller:
    """Calls to one base URL over kept connections, made when first needed."""

    def __init__(
        self, url: str, *, patience: float, timeout: float, on_unreachable: Callable[[str], None] | None = None
    ) -> None:
        self._url = url
        self._patience = patience
        self._timeout = timeout
        self._on_unreachable = on_unreachable
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        waits: float = 0.0,
    ) -> tuple[int, Any]:
        """Status and decoded body; `waits`: seconds for which the server itself may wait before it answers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        delays = _delays()
        told = False
        while True:
            try:
                async with asyncio.timeout(self._timeout + waits):
                    return await self._try(method, path, json, params)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, _NoAnswer, OSError) as error:
                reason = _reason(error)
            if not told and self._on_unreachable is not None:
                self._on_unreachable(reason)
            told = True
            delay = next(delays)
            if loop.time() + delay > deadline:
                raise self._unavailable(reason)
            await asyncio.sleep(delay)

    async def _try(self, method: str, path: str, json: Any, params: Mapping[str, str] | None) -> tuple[int, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url = URL(self._url + path, encoded=True)
        async with self._session.request(method, url, json=json, params=params, timeout=_NO_TIMEOUT) as response:
            text = await response.text()
            status, kind = response.status, response.content_type
        if status in _GATEWAY and kind != "application/problem+json":
            raise _NoAnswer(f"a proxy answered {status}")
        body = _decode(text)
        if status < 400 and (body is not None or not text):
            return status, body
        error = _error(self._url, status, body)
        raise _NoAnswer(str(error)) if error.code in _AGAIN else error

    def _unavailable(self, reason: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"no catalog answers at {self._url} ({reason}; tried for {self._patience:g} s); "
            "start one with `epochal up`, or name another with --catalog or EPOCHAL_CATALOG"
        )


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)  # asyncio.timeout around the try covers connecting as well


def _delays() -> Iterator[float]:
    ceiling = FIRST_DELAY
    while True:
        yield random.uniform(ceiling / 2, ceiling)
        ceiling = min(ceiling * 2, MAX_DELAY)


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            return os.strerror(number).lower() if number else str(error.os_error)
        case TimeoutError():
            return "no answer in time"
        case _:
            return str(error) or type(error).__name__


def _decode(text: str) -> Any:
    try:
        return json_module.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _error(url: str, status: int, body: Any) -> EpochalError:
    """The error that a problem document names; its `code` is kept also when this version has no class for it."""
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        return RemoteProtocolError(f"{url} answered {status} but not as a catalog does; is the address right?")
    code, detail = body["code"], str(body.get("detail") or body.get("title") or status)
    problems = [
        Problem(str(item.get("path", "")), str(item.get("reason", "")), str(item.get("hint", "")))
        for item in body.get("problems") or ()
        if isinstance(item, dict)
    ]
    if code == "immutable_field":
        return ManifestError(detail, problems)
    error = from_code(code, detail)
    if problems and isinstance(error, ManifestError | SchemaMismatch | ConfigError):
        return type(error)(detail, problems)
    if error.code != code:
        error.code = code  # type: ignore[misc]  # on this instance only
        error.retryable = bool(body.get("retryable", False))  # type: ignore[misc]
    return error
