"""Errors that only a publisher raises while it serves its history over HTTP; all others are in `epochal.errors`.

Code that reads history or checks targets raises them too; only the routes know their status codes.

EpochalError
├── UsageError
│   ├── NotAcceptable
│   ├── WebhookTarget
│   └── SubscriptionUsed
└── HistoryTruncated
    └── EventsTruncated
"""

from typing import Any

from epochal.errors import HistoryTruncated, UsageError
from epochal.protocol.messages import Position
from epochal.protocol.times import Time, to_json


class NotAcceptable(UsageError):
    """The client accepts none of the formats in which events are sent."""

    code = "not_acceptable"


class WebhookTarget(UsageError):
    """A callback that the setting `webhook_targets` does not allow."""

    code = "webhook_target"


class SubscriptionUsed(UsageError):
    """A subscription id can be used only once (Q4)."""

    code = "subscription_used"


class EventsTruncated(HistoryTruncated):
    """Events after the position are gone. Names the first position that is kept, and the lower frontier there (Q2)."""

    def __init__(self, after: int, first: Position, frontier: tuple[Time, ...]) -> None:
        self.first = first
        self.frontier = frontier
        super().__init__(f"events after {after} are gone; the first retained position is {first.seq}")

    @property
    def more(self) -> dict[str, Any]:
        """Additional fields of the problem document."""
        return {"first_available": list(self.first), "frontier": [to_json(time) for time in self.frontier]}
