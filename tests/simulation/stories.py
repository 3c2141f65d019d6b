"""What one reading application was given, through all its lives.

Separate from the readers, which fill it, so that the checks, which read it, know none of the machines.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.oracle import TOPICS, Standing, Times

from epochal.protocol.times import Time

Topics = frozenset[bytes]
ALL: Topics = frozenset(TOPICS)
Yield = tuple[Time, dict[str, list[bytes]]]
"""An epoch, and its payloads by segment in the order given."""


class Join(NamedTuple):
    """A segment began: at its start, or again where the events that follow are not the next ones."""

    segment: str
    incarnation: int
    standing: Standing
    """The log where its events began, as it really was."""
    filters: bool
    """Whether what was under way there has to be left out (E15)."""
    gap: bool = False


class Claim(NamedTuple):
    """`saw_whole(time)` was true."""

    time: Time
    seen: frozenset[bytes]
    """All payloads of that time, of topics that were wanted, that had arrived or been handed out."""
    at: float
    life: int
    topics: Topics = ALL
    """What was wanted when it was complete."""


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
    joined: float = 0.0
    wanted: tuple[Time, ...] | None = None
    """If not None, it asked for what these times reach."""
    yields: list[Yield] = field(default_factory=list)
    aborted: set[Time] = field(default_factory=set)
    joins: list[Join] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    torn: set[Time] = field(default_factory=set)
    """Epochs of which it had a part when a gap came, or when a machine lost something of that part.

    They count as aborted for this reader, though they may complete for others (E10, E17)."""
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
    frontier: Times | None = None
    """The last frontier that was reported to it; None if it ended before, or was not ready then."""
