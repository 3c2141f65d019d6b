"""A segment's log on a disk that survives its publisher: what was synced is there, and some of what was written.

The simulated counterpart of log files. Only their promises count here.
"""

from collections.abc import Sequence
from math import inf
from typing import TypeAlias

from tests.simulation.world import World

from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState, apply
from epochal.protocol.publisher.effects import Log, PublisherEffect, Push
from epochal.protocol.publisher.journal import Note, Restored, Restoring, encode_notes
from epochal.protocol.publisher.machine import SegmentPublisher

ROLL = 0.02
"""How often an entry is followed by a new log file."""


Checkpoint: TypeAlias = tuple[SegmentState, bytes, SegmentState | None]
"""What a new file begins with: the state, the notes, and since when only the frontier had moved."""


class Disk:
    """Entries after a checkpoint, and all events ever written."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkpoint: Checkpoint | None = None
        self._entries: list[tuple[list[m.Event], bytes]] = []
        self._events: list[m.Event] = []
        self._unsynced = 0
        """Entries at the end that the kernel has, and the disk has not."""
        self._start: SegmentState | None = None
        self._vouched = False
        """Whether the log says of its end that it is on disk."""
        self._begun_at = 0
        """`boots` when the incarnation began."""
        self.keeps = inf
        """How many bytes of events it must keep at least, as its settings say."""
        self.relaxed = False
        """Whether it acknowledges what is not synced (policy `interval`)."""
        self.boots = 0
        """How often the machine has died: what was written before, and not synced, need not be there (E11)."""
        self.incarnations: list[tuple[int, int]] = []
        """Those that the log knows, each with its first event."""

    def restore(self, incarnation: int) -> Restored | None:
        """What the next incarnation begins with; None for a new log."""
        self.incarnations.append((incarnation, len(self._events)))
        if self._checkpoint is None:
            return None
        restoring = Restoring.after(*self._checkpoint)
        for events, notes in self._entries:
            restoring.entry(events, notes)
        return restoring.end()

    @property
    def in_doubt(self) -> bool:
        """Whether the log may lack what was acknowledged; to be asked between `restore` and `begin` (E11)."""
        return self.relaxed and not self._vouched and self.boots != self._begun_at

    def begin(self, publisher: SegmentPublisher) -> list[PublisherEffect]:
        """The incarnation begins, durably: a new log gets its first checkpoint.

        If the log may lack something, it says in the same entry that the open epochs are aborted; returns what is
        left to be carried out of that.
        """
        effects, logged = doubted(publisher) if self.in_doubt else ([], None)
        if logged is not None:
            events = events_of(effects)
            self._entries.append((events, encode_notes(logged.notes)))
            self._events += events
        self._sync()
        self._vouched, self._begun_at = False, self.boots
        publisher.history.archived = m.NOTHING_YET
        if self._checkpoint is None:
            self._start = publisher.state()
            self._checkpoint = checkpoint_of(publisher)
        return effects

    def next_checkpoint(self, publisher: SegmentPublisher) -> Checkpoint | None:
        """The checkpoint of a new file, if one should begin after what was just taken."""
        return checkpoint_of(publisher) if self._world.chance(ROLL) else None

    def write(
        self,
        events: Sequence[m.Event],
        notes: Sequence[Note],
        checkpoint: Checkpoint | None,
        *,
        sync: bool,
    ) -> None:
        """One group commit, and a new file after it if there is a checkpoint; the old one is synced first."""
        self._entries.append((list(events), encode_notes(notes)))
        self._events += events
        self._unsynced += 1
        self._vouched = False
        if sync or checkpoint is not None:
            self._sync()
        if checkpoint is not None:
            self._checkpoint = checkpoint
            self._entries.clear()

    def sync(self) -> None:
        """Secure all that was written; in a quiet moment the log says so."""
        self._sync()
        self._vouched = self._world.chance(0.5)

    def _sync(self) -> None:
        self._unsynced = 0

    def close(self) -> None:
        """The process ends in order: all is synced, and the log says so."""
        self._sync()
        self._vouched = True

    def lose(self) -> None:
        """The volume is gone, and the next incarnation is given an empty one."""
        self._checkpoint = self._start = None
        self._entries, self._events, self.incarnations = [], [], []
        self._unsynced, self._vouched = 0, False

    def crash(self) -> None:
        """The machine dies: of what was not synced a part is lost, from the end. A process's death takes nothing."""
        self.boots += 1
        for _ in range(self._world.random.choice((0, self._world.random.randint(0, self._unsynced), self._unsynced))):
            events, _ = self._entries.pop()
            del self._events[len(self._events) - len(events) :]
        self._unsynced = 0

    def since(self, seq: int, count: int) -> list[m.Event]:
        """The next events after `seq`."""
        return self._events[seq + 1 : seq + 1 + count]

    def beginning(self, wanted: EpochQuery) -> SegmentState:
        """Where all that is wanted begins; the start of the log if that is before it."""
        assert self._start is not None
        if not wanted.untouched(self._start):
            return self._start
        return wanted.pass_over(self._start, self._events)[0]

    def state_at(self, seq: int) -> SegmentState:
        """The state just after event `seq`."""
        assert self._start is not None
        progress = self._start.progress()
        for event in self._events[: seq + 1]:
            apply(progress, event)
        return SegmentState.of(seq, progress)


def checkpoint_of(publisher: SegmentPublisher) -> Checkpoint:
    """The checkpoint of a file that begins with what was just taken."""
    return publisher.state(), encode_notes(publisher.checkpoint()), publisher.quiet_since


def doubted(publisher: SegmentPublisher) -> tuple[list[PublisherEffect], Log | None]:
    """Abort what is open, as the log may lack some of it: the effects of that, and what to log with them, if any."""
    if not publisher.doubt():
        return [], None
    *effects, logged = publisher.take()
    assert isinstance(logged, Log)
    return effects, logged


def events_of(effects: Sequence[PublisherEffect]) -> list[m.Event]:
    """What a take puts into the log."""
    pushes = [effect.message for effect in effects if isinstance(effect, Push)]
    return [message for message in pushes if not isinstance(message, m.Heartbeat)]
