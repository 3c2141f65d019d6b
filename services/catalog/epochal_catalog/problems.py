"""Errors as HTTP answers: application/problem+json with the error's stable code (RFC 9457).

Apart from the routes so that they only raise; which error has which status stands in one table here.
"""

from http import HTTPStatus
from typing import Any

from aiohttp import web

from epochal import errors
from epochal_catalog import errors as own

_STATUS: dict[type[errors.EpochalError], int] = {
    errors.ManifestError: 422,
    errors.SchemaMismatch: 409,
    errors.TimeShapeError: 422,
    errors.StreamNotFound: 404,
    errors.StreamComplete: 409,
    errors.StreamGone: 410,
    errors.Superseded: 409,
    errors.NoPublisher: 503,
    own.ImmutableField: 409,
    own.InvalidRequest: 422,
    own.SegmentNotFound: 404,
    own.UnknownPublisher: 404,
    own.StoreUnavailable: 503,  # StoreFailed too
    own.Overloaded: 503,
    own.ShuttingDown: 503,
}
RETRY_AFTER = 1
"""Seconds; what a 503 asks its caller to wait."""
CONTENT_TYPE = "application/problem+json"


def status_of(error: errors.EpochalError) -> int:
    """The HTTP status of an error; 500 for one that has none, which is a bug here."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


def from_error(error: errors.EpochalError) -> web.Response:
    """The answer for a raised error."""
    problems = [problem.to_json() for problem in getattr(error, "problems", ())]
    detail = str(error).split("\n", 1)[0]
    return answer(status_of(error), error.code, detail, retryable=error.retryable, problems=problems)


def from_http(error: web.HTTPException) -> web.Response:
    """The answer for what aiohttp itself refuses: no such route, wrong method, body too large."""
    code = {404: "no_such_route", 405: "method_not_allowed", 408: "too_slow", 413: "body_too_large"}
    detail = {
        404: "there is nothing at this path; GET /openapi.json lists what there is",
        405: f"this path does not take that method; it takes {error.headers.get('Allow', 'others')}",
        413: "the body is larger than this catalog takes (EPOCHAL_CATALOG_MAX_BODY)",
    }
    status = error.status
    response = answer(status, code.get(status, "bad_request"), detail.get(status, error.text or error.reason))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def answer(
    status: int, code: str, detail: str, *, retryable: bool = False, problems: list[dict[str, str]] | None = None
) -> web.Response:
    """A problem document; every 503 says when to come back."""
    body: dict[str, Any] = {
        "type": f"urn:epochal:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
    }
    if problems:
        body["problems"] = problems
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return web.json_response(body, status=status, headers=headers, content_type=CONTENT_TYPE)
