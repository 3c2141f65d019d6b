"""The errors that only a relay's HTTP side raises, and the HTTP status of each error."""

from aiohttp import web

from epochal.errors import EpochalError, EpochTooLarge, HistoryTruncated, StreamGone, StreamNotFound, Unavailable
from epochal.service import problems
from epochal.service.errors import InvalidRequest, Overloaded
from epochal_publisher.errors import NotAcceptable
from epochal_publisher.http.reader_places import TooManyOfAddress


class RequestTooLarge(InvalidRequest):
    """The filter or the cursor of a request is too large."""

    code = "request_too_large"


class TooManyFilters(Overloaded):
    """One address reads as many different filters as it may."""

    code = "too_many_filters"


STATUS: dict[type[EpochalError], int] = {
    RequestTooLarge: 413,
    InvalidRequest: 422,
    NotAcceptable: 406,
    StreamNotFound: 404,
    StreamGone: 410,
    HistoryTruncated: 410,
    EpochTooLarge: 507,
    TooManyOfAddress: 429,
    TooManyFilters: 429,
    Unavailable: 503,
}


def answer(error: EpochalError) -> web.Response:
    """The problem document of an error."""
    return problems.explain(error, STATUS)
