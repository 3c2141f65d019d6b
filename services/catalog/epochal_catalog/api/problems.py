"""Errors as HTTP answers: application/problem+json with the error's stable code (RFC 9457).

The routes only raise errors; one table here has the status of each.
"""

from aiohttp import web

from epochal import errors
from epochal.service import errors as shared
from epochal.service.problems import explain
from epochal_catalog import errors as own

_STATUS: dict[type[errors.EpochalError], int] = {
    errors.ManifestError: 422,
    errors.SchemaMismatch: 409,
    errors.TimeShapeError: 422,
    errors.StreamNotFound: 404,
    errors.StreamComplete: 409,
    errors.WriterFenced: 409,
    errors.StreamGone: 410,
    errors.HistoryTruncated: 410,
    errors.Superseded: 409,
    errors.NoPublisher: 503,
    own.ImmutableField: 409,
    shared.InvalidRequest: 422,
    shared.SegmentNotFound: 404,
    own.UnknownPublisher: 404,
    shared.UnknownSubscription: 404,
    own.NotOwner: 409,
    own.ReservedName: 409,
    own.OtherStream: 409,
    own.WriterNotFound: 404,
    own.WriterNotLost: 409,
    own.RevisionAhead: 409,
    own.StoreUnavailable: 503,  # StoreFailed too
    shared.Overloaded: 503,
    shared.ShuttingDown: 503,
}


def from_error(error: errors.EpochalError) -> web.Response:
    """The answer for a raised error."""
    return explain(error, _STATUS)
