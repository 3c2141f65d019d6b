"""What a relay's machine asks its shell to do for one segment, in order.

Sources: F13, F15, F17.
"""

from typing import NamedTuple, TypeAlias

from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import PublisherEffect, SendAnswers
from epochal.protocol.relay.run import Run
from epochal.protocol.topics.filter import TopicFilter


class ForReaders(NamedTuple):
    """Carry out the effects on the channels of `run`, then end each of them if it is over (F13)."""

    run: Run
    effects: list[PublisherEffect]


class Want(NamedTuple):
    """Ask upstream for `topics`. If that `widens` the filter, the follower reports from which event on they come."""

    topics: TopicFilter
    widens: bool


class Forward(NamedTuple):
    """Send a message upstream on connection `number`, which is opened with the first message.

    Answers go to `RelayedSegment.answered`; when the connection breaks, call `RelayedSegment.cut`.
    """

    number: int
    message: m.Message


class HangUp(NamedTuple):
    """Close the connection `number`."""

    number: int


RelayEffect: TypeAlias = ForReaders | SendAnswers | Want | Forward | HangUp
