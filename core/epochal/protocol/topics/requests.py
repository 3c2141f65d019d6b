"""What the two ends of a connection say to each other about topics. Sources: rules N7, N8, F4."""

from enum import IntEnum
from typing import NamedTuple

WINDOW = 8
"""Requests that may be under way at once; their numbers lie so close together as well."""


class Step(IntEnum):
    """What a request does to one prefix at the publisher. Each does the same when it comes again."""

    SUBSCRIBE = 1
    """Send what begins with it."""
    REJECT = 2
    """Do not."""
    RESET = 3
    """As for the next shorter prefix."""

    @property
    def leaves(self) -> bool | None:
        """What the publisher has for the prefix afterwards: send, do not, or nothing."""
        return None if self is Step.RESET else self is Step.SUBSCRIBE


class Request(NamedTuple):
    """One step. `oldest` is the lowest number that is under way: of a lower one nothing is sent any more."""

    number: int
    oldest: int
    step: Step
    prefix: bytes


class Confirm(NamedTuple):
    """The publisher has carried out request `number`."""

    number: int
    step: Step
    prefix: bytes
