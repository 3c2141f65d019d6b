"""The errors that every service answers over HTTP in the same way, in addition to those of `epochal.errors`.

Separate from `problems`, which makes answers from them, because the code that raises them must not know status codes.
"""

from collections.abc import Sequence

from epochal.errors import Problem, StreamError, Unavailable, UsageError


class InvalidRequest(UsageError):
    """A body or a parameter that cannot be read; `problems` lists every wrong field."""

    code = "invalid_request"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class SegmentNotFound(StreamError):
    """The stream has no segment of that id, or this service does not serve it."""

    code = "segment_not_found"


class UnknownSubscription(StreamError):
    """There is no live subscription of that id; its reader should subscribe again."""

    code = "unknown_subscription"


class Overloaded(Unavailable):
    """There are more requests at once than the settings allow."""

    code = "overloaded"


class ShuttingDown(Unavailable):
    """The service is stopping; the same request can succeed at the next process."""

    code = "shutting_down"
