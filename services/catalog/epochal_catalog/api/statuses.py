"""The HTTP status of each error; the routes only raise errors."""

from epochal import errors
from epochal.service import errors as shared
from epochal_catalog import errors as own
from epochal_catalog.domain.kinds import NOUNS

STATUS: dict[type[errors.EpochalError], int] = {
    **{error: status for noun in NOUNS for error, status in noun.errors.items()},
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
    shared.InvalidRequest: 422,
    shared.SegmentNotFound: 404,
    own.RevisionAhead: 409,
    own.StoreUnavailable: 503,  # StoreFailed too
    shared.Overloaded: 503,
    shared.ShuttingDown: 503,
}
"""The first class that the error is an instance of decides (RFC 9457)."""
