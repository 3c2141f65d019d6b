"""Errors as HTTP answers: application/problem+json with the error's stable code (RFC 9457).

Apart from the routes so that they only raise; which error has which status stands in one table here.
"""

from aiohttp import web

from epochal import errors
from epochal.service.problems import answer
from epochal_catalog import errors as own

_STATUS: dict[type[errors.EpochalError], int] = {
    errors.ManifestError: 422,
    errors.SchemaMismatch: 409,
    errors.TimeShapeError: 422,
    errors.StreamNotFound: 404,
    errors.StreamComplete: 409,
    errors.StreamGone: 410,
    errors.HistoryTruncated: 410,
    errors.Superseded: 409,
    errors.NoPublisher: 503,
    own.ImmutableField: 409,
    own.InvalidRequest: 422,
    own.SegmentNotFound: 404,
    own.UnknownPublisher: 404,
    own.UnknownSubscription: 404,
    own.NotOwner: 409,
    own.ReservedName: 409,
    own.RevisionAhead: 409,
    own.StoreUnavailable: 503,  # StoreFailed too
    own.Overloaded: 503,
    own.ShuttingDown: 503,
}


def status_of(error: errors.EpochalError) -> int:
    """The HTTP status of an error; 500 for one that has none, which is a bug here."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


def from_error(error: errors.EpochalError) -> web.Response:
    """The answer for a raised error."""
    problems = [problem.to_json() for problem in getattr(error, "problems", ())]
    detail = str(error).split("\n", 1)[0]
    return answer(status_of(error), error.code, detail, retryable=error.retryable, problems=problems)
