"""What one reading application was given, through all its lives.

Separate from the readers, which fill it, so that what judges them by it knows none of the machines.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.oracle import TOPICS

from epochal.protocol.times import Time

Topics = frozenset[bytes]
ALL: Topics = frozenset(TOPICS)
Yield = tuple[Time, dict[str, list[bytes]]]
"""An epoch, and its payloads by segment in the order given."""


class Join(NamedTuple):
    """A segment began: at its start, or again where the events that follow are not the next ones."""

    segment: str
    incarnation: int
    gap: bool


@dataclass(slots=True)
class Memory:
    """What the application knows."""

    name: str
    start: bool
    """Whether it began at the start of the history; else it began live."""
    reads_epochs: bool
    partial: bool
    pushed: bool = True
    """Whether it follows pushes at first; else it pulls."""
    wanted: tuple[Time, ...] | None = None
    """If not None, it asked for what these times reach."""
    yields: list[Yield] = field(default_factory=list)
    aborted: set[Time] = field(default_factory=set)
    joins: list[Join] = field(default_factory=list)
    over: bool = False
    """Whether it ended: its history was gone, or it left."""
    whole_filter: bool = False
    """Whether its stream's subscribers say what they want as they join; else all is pushed to them."""
    topics: Topics = ALL
    """What it wants."""
    always: Topics = ALL
    """What it has wanted all the time, and could have whole."""
    given_topics: dict[Time, Topics] = field(default_factory=dict)
    """Epoch -> the topics that it must have whole; it must have none of others."""
    lives: int = 0
    in_history: bool = True
    """Whether its subscription writes down what it does, for the checker; one over HTTP does so itself."""
    saves: int = 0
    """How many cursors it stored."""
