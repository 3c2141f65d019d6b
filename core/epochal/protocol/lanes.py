"""One segment as a writer knows it: the connection's state, what was appended there, what is held there.

Apart from `writing`, which moves all lanes together: this is what differs between them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.times import Time


class Sent(NamedTuple):
    """An append, and the ticket by which the caller knows it."""

    ticket: int
    append: m.Append


@dataclass(slots=True)
class Lane:
    """One segment as the writer knows it."""

    connected: bool = False
    opened: m.Opened | None = None
    """The answer to this connection's `Open`; None while there is none."""
    ever_opened: bool = False
    granted: bool = False
    """Whether any answer to this session's `Open` was a new grant; an answer to a resume no longer says so."""
    incarnation: int = 0
    window: int = 0
    next: int = 0
    acked: int = -1
    held: Antichain = field(default_factory=Antichain)
    """What the publisher confirmed that the writer holds there."""
    touched: set[Time] = field(default_factory=set)
    unacked: deque[Sent] = field(default_factory=deque)
    unsent: deque[Sent] = field(default_factory=deque)
    in_flight: int = 0
    operations: dict[int, tuple[int, m.Hold | m.Abort | m.Leave]] = field(default_factory=dict)
    """op -> (ticket, message), in the order sent; sent again after a reconnect."""
