"""Errors as HTTP answers: application/problem+json with a stable code (RFC 9457).

Each service makes such answers too, for errors of its own.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from epochal.errors import EpochalError

RETRY_AFTER = 1
"""Seconds that a caller should wait after a 429 or a 503."""
CONTENT_TYPE = "application/problem+json"

_CODES = {404: "no_such_route", 405: "method_not_allowed", 408: "too_slow", 413: "body_too_large"}
_DETAILS = {
    404: "there is nothing at this path",
    413: "the body is larger than the setting max_body of this service",
}


def answer(
    status: int,
    code: str,
    detail: str,
    *,
    retryable: bool = False,
    problems: list[dict[str, str]] | None = None,
    more: dict[str, Any] | None = None,
) -> web.Response:
    """A problem document, with the extra fields `more`; every 429 and 503 says when to try again."""
    body = _document(status, code, detail, retryable, problems, more)
    headers = {"Retry-After": str(RETRY_AFTER)} if status in (429, 503) else None
    return web.json_response(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def _document(
    status: int,
    code: str,
    detail: str,
    retryable: bool,
    problems: list[dict[str, str]] | None,
    more: dict[str, Any] | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": f"urn:epochal:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
        **(more or {}),
    }
    return {**body, "problems": problems} if problems else body


def document(error: EpochalError, statuses: Mapping[type[EpochalError], int]) -> dict[str, Any]:
    """The document of `explain`, for an answer that has several."""
    status, code, detail, retryable, wrong, more = _parts(error, statuses)
    return _document(status, code, detail, retryable, wrong, more)


def explain(error: EpochalError, statuses: Mapping[type[EpochalError], int]) -> web.Response:
    """The answer for a raised error, with the status of the first class in `statuses` that it is an instance of.

    An error of no listed class is a bug here, and is answered with 500. The error's attribute `problems`, and the extra
    fields in its attribute `more`, go into the document.
    """
    status, code, detail, retryable, wrong, more = _parts(error, statuses)
    return answer(status, code, detail, retryable=retryable, problems=wrong, more=more)


def _parts(
    error: EpochalError, statuses: Mapping[type[EpochalError], int]
) -> tuple[int, str, str, bool, list[dict[str, str]], dict[str, Any] | None]:
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
    wrong = [problem.to_json() for problem in getattr(error, "problems", ())]
    return status, error.code, str(error).split("\n", 1)[0], error.retryable, wrong, getattr(error, "more", None)


def from_http(error: web.HTTPException) -> web.Response:
    """The answer for a request that the HTTP library refuses: no such route, wrong method, body too large."""
    status, allowed = error.status, error.headers.get("Allow")
    detail = _DETAILS.get(status, error.text or error.reason)
    if allowed is not None:
        detail = f"this path does not take that method; it takes {allowed}"
    response = answer(status, _CODES.get(status, "bad_request"), detail, retryable=status == 408)
    if allowed is not None:
        response.headers["Allow"] = allowed
    return response
