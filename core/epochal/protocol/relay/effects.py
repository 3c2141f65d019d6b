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
    """Have other topics sent from upstream; if it `widens`, the follower reports from where on they come."""

    topics: TopicFilter
    widens: bool


class Forward(NamedTuple):
    """Send upstream, on the connection `number`, which is made with the first message.

    What comes back goes to `RelayedSegment.answered`; when it breaks, `RelayedSegment.cut` is called.
    """

    number: int
    message: m.Message


class HangUp(NamedTuple):
    """Close the connection `number`."""

    number: int


RelayEffect: TypeAlias = ForReaders | SendAnswers | Want | Forward | HangUp
