"""The HTTP status of each error that a publisher answers with."""

from aiohttp import web

from epochal.errors import EpochalError, HistoryTruncated, Unavailable
from epochal.service import problems
from epochal.service.errors import InvalidRequest, SegmentNotFound, UnknownSubscription
from epochal_publisher.errors import NotAcceptable, SubscriptionUsed, WebhookTarget

STATUS: dict[type[EpochalError], int] = {
    InvalidRequest: 422,
    NotAcceptable: 406,
    WebhookTarget: 403,
    SubscriptionUsed: 409,
    SegmentNotFound: 404,
    UnknownSubscription: 404,
    HistoryTruncated: 410,
    Unavailable: 503,
}


def answer(error: EpochalError) -> web.Response:
    """The problem document of an error."""
    return problems.explain(error, STATUS)
