"""The refusals that only a publisher's HTTP side gives, beside those of `epochal.errors`, and how each is answered.

Apart from the routes because what reads history and what delivers it refuse too, and know no status codes.
"""

from typing import Any

from aiohttp import web

from epochal.errors import EpochalError, HistoryTruncated, Unavailable, UsageError
from epochal.protocol.messages import Position
from epochal.protocol.times import Time, to_json
from epochal.service import problems
from epochal.service.errors import InvalidRequest, SegmentNotFound, UnknownSubscription


class NotAcceptable(UsageError):
    """The client takes none of the forms in which events are told."""

    code = "not_acceptable"


class WebhookTarget(UsageError):
    """A callback that the setting `webhook_targets` does not allow."""

    code = "webhook_target"


class SubscriptionUsed(UsageError):
    """A subscription id is used once (Q4, Q9)."""

    code = "subscription_used"


class EventsTruncated(HistoryTruncated):
    """Events behind the position are gone; the first position that can be had, and the lower frontier there (Q2)."""

    def __init__(self, asked: int, first: Position, frontier: tuple[Time, ...]) -> None:
        self.first, self.frontier = first, frontier
        super().__init__(f"events after {asked} are gone; the first retained position is {first.seq}")

    @property
    def told(self) -> dict[str, Any]:
        """The fields beside those that every problem has."""
        return {"first_available": list(self.first), "frontier": [to_json(time) for time in self.frontier]}


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
