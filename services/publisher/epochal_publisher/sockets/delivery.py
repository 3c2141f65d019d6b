"""Carries out the effects of a segment's machines that go to subscribers: pushes, snapshots, answers.

Publishers and relays use the same code.
"""

import logging
from collections.abc import Iterable

from epochal.errors import LocalProtocolError
from epochal.protocol.publisher.effects import Private, PublisherEffect, Push, SendAnswers
from epochal.protocol.wire import encode
from epochal_publisher.counters import ProcessCounters
from epochal_publisher.sockets.events import Events
from epochal_publisher.sockets.router import Router
from epochal_publisher.sockets.served import ServedSegment

logger = logging.getLogger("epochal.publisher")


class Delivery:
    """Delivers to the subscribers on these two sockets."""

    def __init__(self, events: Events, requests: Router, counters: ProcessCounters) -> None:
        self._events = events
        self._requests = requests
        self._counters = counters

    def carry_out(self, served: ServedSegment, effects: Iterable[PublisherEffect]) -> list[PublisherEffect]:
        """Carry out the effects for subscribers, in order; returns the other effects."""
        push, counters = served.channels.push, served.counters
        others: list[PublisherEffect] = []
        unsent = 0
        for effect in effects:
            kind = type(effect)
            if kind is Push:
                try:
                    unsent += not push(effect.message)  # type: ignore[union-attr, arg-type]  # `match` costs twice as much
                except LocalProtocolError as error:
                    logger.error("an event cannot be pushed, subscribers will pull it: %s", error)
            elif kind is Private:
                self._send_private(served, effect)  # type: ignore[arg-type]
            elif kind is SendAnswers:
                counters.answered(effect.messages[0])  # type: ignore[union-attr]
                self._requests.send(effect.peer, effect.messages)  # type: ignore[union-attr]
            else:
                others.append(effect)
        counters.unsent_events += unsent
        self.flush(served)
        return others

    def flush(self, served: ServedSegment) -> None:
        """Send everything gathered for any channel."""
        pushed = served.channels.flush()
        if pushed:
            served.counters.pushed_messages += len(pushed)
            served.counters.pushed_bytes += self._events.send(pushed)

    def _send_private(self, served: ServedSegment, effect: Private) -> None:
        # The snapshot covers every event before it. If they were sent after it, they would count twice (S9).
        self.flush(served)
        try:
            message = served.channels.left(effect.message, effect.replaced)
            self._events.send(encode(message, prefix=b"P" + effect.subscription))
        except LocalProtocolError as error:
            logger.error("a subscriber cannot be answered: %s", error)
            self._counters.failures += 1
