"""Errors as HTTP answers: application/problem+json with a stable code (RFC 9457).

Separate from the server because each service makes such answers too, for errors of its own.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from epochal.errors import EpochalError

RETRY_AFTER = 1
"""Seconds; what a 503 asks its caller to wait."""
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
    """A problem document with `more` fields of its own; every 503 says when to come back."""
    body: dict[str, Any] = {
        "type": f"urn:epochal:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
        **(more or {}),
    }
    if problems:
        body["problems"] = problems
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return web.json_response(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def explain(error: EpochalError, statuses: Mapping[type[EpochalError], int]) -> web.Response:
    """The answer for a raised error, by the first kind in `statuses` that it is of; one of none is a 500, a bug here.

    Its `problems`, and the fields that it has `told` beside them, are in the document.
    """
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
    wrong = [problem.to_json() for problem in getattr(error, "problems", ())]
    detail = str(error).split("\n", 1)[0]
    more = getattr(error, "told", None)
    return answer(status, error.code, detail, retryable=error.retryable, problems=wrong, more=more)


def from_http(error: web.HTTPException) -> web.Response:
    """The answer for what the HTTP library itself refuses: no such route, wrong method, body too large."""
    status, allowed = error.status, error.headers.get("Allow")
    detail = _DETAILS.get(status, error.text or error.reason)
    if allowed is not None:
        detail = f"this path does not take that method; it takes {allowed}"
    response = answer(status, _CODES.get(status, "bad_request"), detail, retryable=status == 408)
    if allowed is not None:
        response.headers["Allow"] = allowed
    return response
