"""One HTTP call: tried again while no catalog answers, limited in time, with the errors of `epochal.errors`.

It knows nothing about streams. Only this module decides what is tried again: a call that got no answer, or a code of
`AGAIN`. Any other answer is final, also a refusal.
"""

import asyncio
import json as json_module
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from yarl import URL

from epochal.backoff import Backoff
from epochal.client.catalog.url import ADVICE
from epochal.client.tracing import trace_headers
from epochal.errors import (
    CatalogUnavailable,
    ConfigError,
    EpochalError,
    LimitExceeded,
    ManifestError,
    Problem,
    RemoteProtocolError,
    SchemaMismatch,
    from_code,
)

FIRST_DELAY, MAX_DELAY = 0.05, 3.0
"""Seconds between tries: doubled each time, with full jitter so that many clients do not come back at once."""

MAX_ANSWER = 32 * 2**20
"""Bytes of one answer; a page of the longest list is far below."""
MAX_DETAIL, MAX_PROBLEMS = 64 * 1024, 1000
"""Characters of one text, and number of problems, that are kept of an error."""

GATEWAY = (502, 503, 504)
"""Statuses of a proxy whose catalog does not answer."""

AGAIN = ("overloaded", "shutting_down", "store_unavailable")
"""Codes by which a catalog says that it did nothing and that the same call may succeed soon."""


class _NoAnswer(Exception):
    """An answer came, but not from a catalog that could accept or refuse the call."""


class HttpCaller:
    """Calls to one base URL over kept connections, made when first needed.

    `advice`: what the error says to do when no catalog answers.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float,
        timeout: float,
        on_unreachable: Callable[[str], None] | None = None,
        advice: str = ADVICE,
    ) -> None:
        self._url = url
        self._patience = patience
        self._timeout = timeout
        self._on_unreachable = on_unreachable
        self._advice = advice
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
        once: bool = False,
    ) -> tuple[int, Any]:
        """Status and decoded body.

        `waits`: seconds for which the server itself may wait before it answers. `once`: tried once, and not
        reported as an absent catalog.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        backoff = Backoff(FIRST_DELAY, MAX_DELAY)
        reported = False
        while True:
            try:
                async with asyncio.timeout(self._timeout + waits):
                    return await self._try(method, path, json, params)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, _NoAnswer, OSError) as error:
                reason = _reason(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                reason = "the connection's own task was cancelled"  # by a program that cancels all of the loop
            except aiohttp.ClientError as error:  # what came is no HTTP, or not what HTTP allows
                raise _no_catalog(self._url, f"something that is no HTTP ({str(error)[:200]})") from None
            if once:
                raise self._unavailable(reason)
            if not reported and self._on_unreachable is not None:
                self._on_unreachable(reason)
            reported = True
            delay = backoff.delay()
            if loop.time() + delay > deadline:
                raise self._unavailable(reason)
            await asyncio.sleep(delay)

    async def _try(self, method: str, path: str, json: Any, params: Mapping[str, str] | None) -> tuple[int, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,  # no compressed answer is requested: it could unpack to any size
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        url = URL(self._url + path, encoded=True)
        async with self._session.request(
            method, url, json=json, params=params, timeout=_NO_TIMEOUT, allow_redirects=False, headers=trace_headers()
        ) as response:
            text = await self._body(response)
            status, kind = response.status, response.content_type
        if status in GATEWAY and kind != "application/problem+json":
            raise _NoAnswer(f"a proxy answered {status}")
        body = _decode(text)
        if 200 <= status < 300 and (body is not None or not text):
            return status, body
        error = _error(self._url, status, body)
        raise _NoAnswer(str(error)) if error.code in AGAIN else error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > MAX_ANSWER:
                response.close()  # else the rest of the answer would be read
                raise LimitExceeded(f"{self._url} answers with more than {MAX_ANSWER} bytes")
            parts.append(part)
        return b"".join(parts)

    def _unavailable(self, reason: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"no catalog answers at {self._url} ({reason}; tried for {self._patience:g} s); {self._advice}"
        )


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)  # asyncio.timeout around the try covers connecting as well


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            if number is not None and number > 0:  # a name that cannot be resolved has numbers of its own
                return os.strerror(number).lower()
            return str(error.os_error.strerror or error.os_error)
        case TimeoutError():
            return "no answer in time"
        case _:
            return str(error) or type(error).__name__


def _decode(text: bytes) -> Any:
    try:
        return json_module.loads(text.decode(), parse_constant=_no_number) if text else None
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _no_catalog(url: str, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{url} answered {what} and not as a catalog does; is the address right?")


def _error(url: str, status: int, body: Any) -> EpochalError:
    """The error that a problem document names; its `code` is kept also when this version has no class for it."""
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        return _no_catalog(url, str(status))
    code, detail = body["code"], _text(body.get("detail") or body.get("title") or status)
    listed = body.get("problems")
    problems = [
        Problem(_text(item.get("path", "")), _text(item.get("reason", "")), _text(item.get("hint", "")))
        for item in (listed[:MAX_PROBLEMS] if isinstance(listed, list) else ())
        if isinstance(item, dict)
    ]
    if code == "immutable_field":
        return ManifestError(detail, problems)
    error = from_code(code, detail)
    if problems and isinstance(error, ManifestError | SchemaMismatch | ConfigError):
        return type(error)(detail, problems)
    if type(error) is EpochalError:  # a code that is unknown here
        error.retryable = bool(body.get("retryable", False))  # type: ignore[misc]  # on this instance only
    return error


def error_of(url: str, document: Any) -> EpochalError:
    """The error of a problem document that is part of a larger answer; `CatalogUnavailable` for one to try again."""
    error = _error(url, 200, document)
    return CatalogUnavailable(str(error)) if error.code in AGAIN else error


def _text(value: Any) -> str:
    """What goes into an error's message, cut to what a person would read."""
    return value[:MAX_DETAIL] if isinstance(value, str) else reprlib.repr(value)
