"""The errors that only a publisher's HTTP side raises, and the HTTP status of each error.

Separate from the routes because the code that reads and delivers history raises these errors too, and knows no status
codes. All other errors are in `epochal.errors`.
"""

from typing import Any

from aiohttp import web

from epochal.errors import EpochalError, HistoryTruncated, Unavailable, UsageError
from epochal.protocol.messages import Position
from epochal.protocol.times import Time, to_json
from epochal.service import problems
from epochal.service.errors import InvalidRequest, SegmentNotFound, UnknownSubscription


class NotAcceptable(UsageError):
    """The client accepts none of the formats in which events are sent."""

    code = "not_acceptable"


class WebhookTarget(UsageError):
    """A callback that the setting `webhook_targets` does not allow."""

    code = "webhook_target"


class SubscriptionUsed(UsageError):
    """A subscription id can be used only once (Q4, Q9)."""

    code = "subscription_used"


class EventsTruncated(HistoryTruncated):
    """Events after the position are gone. Names the first position that is kept, and the lower frontier there (Q2)."""

    def __init__(self, after: int, first: Position, frontier: tuple[Time, ...]) -> None:
        self.first = first
        self.frontier = frontier
        super().__init__(f"events after {after} are gone; the first retained position is {first.seq}")

    @property
    def more(self) -> dict[str, Any]:
        """The fields besides those that every problem document has."""
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
