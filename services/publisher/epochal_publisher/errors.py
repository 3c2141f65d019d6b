"""The refusals that only a publisher's HTTP side gives, beside those of `epochal.errors`, and how each is answered.

Apart from the routes because what reads history and what delivers it refuse too, and know no status codes.
"""

from typing import Any

from aiohttp import web

from epochal.errors import EpochalError, HistoryTruncated, Problem, StreamError, Unavailable, UsageError
from epochal.protocol.messages import Position
from epochal.protocol.times import Time, to_json
from epochal.service import problems


class InvalidRequest(UsageError):
    """A parameter or a body that cannot be read; `problems` lists every wrong field."""

    code = "invalid_request"

    def __init__(self, message: str, *wrong: Problem) -> None:
        self.problems = wrong
        super().__init__(message)


class NotAcceptable(UsageError):
    """The client takes none of the forms in which events are told."""

    code = "not_acceptable"


class WebhookTarget(UsageError):
    """A callback that the setting `webhook_targets` does not allow."""

    code = "webhook_target"


class SubscriptionUsed(UsageError):
    """A subscription id is used once (Q4, Q9)."""

    code = "subscription_used"


class SegmentNotFound(StreamError):
    """This publisher does not serve the segment."""

    code = "segment_not_found"


class UnknownSubscription(StreamError):
    """No web-hook of that id stands."""

    code = "unknown_subscription"


class Truncated(HistoryTruncated):
    """Events behind the position are gone; the first position that can be had, and the lower frontier there (Q2)."""

    def __init__(self, asked: int, first: Position, frontier: tuple[Time, ...]) -> None:
        self.first, self.frontier = first, frontier
        super().__init__(f"events after {asked} are gone; the first retained position is {first.seq}")

    @property
    def told(self) -> dict[str, Any]:
        """The fields beside those that every problem has."""
        return {"first_available": list(self.first), "frontier": [to_json(time) for time in self.frontier]}


class Overloaded(Unavailable):
    """More is asked for at once than the settings allow."""

    code = "overloaded"


class ShuttingDown(Unavailable):
    """The publisher is stopping; the same request will do at its successor."""

    code = "shutting_down"


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
    """The problem document of an error; what is not expected here is a 500."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    wrong = [vars_of(problem) for problem in error.problems] if isinstance(error, InvalidRequest) else None
    more = error.told if isinstance(error, Truncated) else None
    return problems.answer(status, error.code, str(error), retryable=error.retryable, problems=wrong, more=more)


def vars_of(problem: Problem) -> dict[str, str]:
    """A problem's fields."""
    return {"path": problem.path, "reason": problem.reason, "hint": problem.hint}
