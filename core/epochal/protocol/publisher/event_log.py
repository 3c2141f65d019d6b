"""The log of one segment as its publisher writes it: held, active and aborted times, and the event for each change.

Everything that decides which epochs readers see as complete goes through here, in three ways: an append makes its time
active, `move` changes what is held, and `abort` ends epochs. Each change becomes an event and an effect in the same
step, so the order of the effects is the order of the log.

Sources: rules S1-S7; E1, E2, E10, E11.
"""

from collections.abc import Iterable

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, Change, MutableAntichain
from epochal.protocol.log.history import History, SegmentState, empty_state
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.completion import SegmentCompletion
from epochal.protocol.publisher.effects import PublisherEffect, Push, Reply
from epochal.protocol.publisher.horizon import Horizon
from epochal.protocol.publisher.journal import Journal, Restored
from epochal.protocol.publisher.limits import PublisherSettings, SegmentLimits
from epochal.protocol.publisher.writer_state import Connection, KnownWriters, WriterState
from epochal.protocol.times import Time

ABORTS_AN_EVENT = 128
"""Most times in one abort event: this many fit a header, even for times of the largest shape."""


class EventLog:
    """The events of one segment in this incarnation, and the effects that wait to be taken.

    `start` is the frontier where it begins; every time in `lost` is aborted from the beginning (E11 horizon).
    """

    __slots__ = (
        "acks", "admitted", "completion", "effects", "held", "history", "horizon", "journal", "lags_since", "limits",
        "now", "progress", "quiet_since", "segment", "settings", "writers",
    )  # fmt: skip
    # Slots, because it is used several times for each append.

    def __init__(
        self,
        segment: str,
        settings: PublisherSettings,
        completion: SegmentCompletion,
        *,
        start: tuple[Time, ...],
        lost: tuple[Time, ...],
        now: float,
    ) -> None:
        self.segment = segment
        self.settings = settings
        self.completion = completion
        self.writers = KnownWriters()
        self.now = now
        """When time last passed; publisher's clock, seconds."""
        self.limits = SegmentLimits(
            settings.shape, max_payload=settings.max_payload, retention_bytes=settings.retention_bytes
        )
        self.progress = Progress(start, below=lost)
        self.held = MutableAntichain(start)
        """What all capabilities together hold. The reported frontier, in `progress`, can lag (E11 horizon)."""
        self.horizon = None if settings.durable else Horizon(settings.shape, start, lost)
        self.journal = Journal() if settings.durable else None
        self.lags_since = now
        """When the held frontier went past the one that may be reported; of use while `lags`. Publisher's clock, s."""
        kept = settings.retention_bytes
        self.history = History(
            empty_state(start, tuple(self.progress.below)),
            max_bytes=kept if settings.memory_bytes is None else min(kept, settings.memory_bytes),
            max_age=settings.retention_age,
        )
        self.quiet_since: SegmentState | None = None
        """The state since which only the frontier has moved (E13 retention); None if a batch or an abort was last."""
        self.effects: list[PublisherEffect] = []
        self.acks: dict[Connection, tuple[int, int, int, str]] = {}
        """By connection, the acknowledgement that is still to be sent: last number, its event, how many, writer."""
        self.admitted: dict[Connection, Time] = {}
        """By connection, the time of its last append: a run of appends at one time is checked once.

        Cleared by everything that can change the right to append: moves, aborts, sessions, departures.
        """

    def restore(self, restored: Restored) -> None:
        """Continue where the log on disk ends."""
        state = restored.state
        held = [time for writer in restored.writers for time in writer.held]
        self.progress = state.progress()
        self.quiet_since = restored.quiet_since
        self.held = MutableAntichain([*restored.publisher.held, *held])
        self.history = self.history.empty_after(state)
        self.history.committed = state.seq  # later events are not on disk yet
        self.limits.restore(restored.sizes)

    def begin_again(self, lower: tuple[Time, ...], lost: Iterable[Time], incarnation: int) -> None:
        """Begin an empty log at `lower`, with all of `lost` aborted, once it is known what the last incarnation had."""
        committed = self.history.committed
        self.progress = Progress(lower, below=lost)
        self.quiet_since = None
        self.history = self.history.empty_after(empty_state(lower, tuple(self.progress.below)))
        self.history.committed = committed
        self.history.incarnations = [(incarnation, 0)]

    @property
    def seq(self) -> int:
        """The last event of the log; -1 for none."""
        return self.history.last

    # ---- what is held ----

    def move_held(self, state: WriterState, held: Antichain) -> None:
        """A writer holds `held` now, and nothing else.

        Additions and removals are one update, so that the frontier never moves in between.
        """
        changes: list[Change] = [(time, 1) for time in held]
        changes += [(time, -1) for time in state.held]
        state.move(held, self.now)
        self.move(changes)

    def move(self, changes: Iterable[Change]) -> None:
        """Capabilities have changed; log what that does to the frontier."""
        self.admitted.clear()
        if self.held.update(changes):
            self.publish()

    def publish(self) -> None:
        """Log the frontier of all that is held, or, if the catalog must record that first, its recorded frontier."""
        frontier, reported = self.held.frontier, self.progress.lower.frontier
        if frontier == reported:
            return
        if self.horizon is not None and not self.completion.complete and not self.horizon.allows(frontier):
            if not self.horizon.urgent:
                self.lags_since = self.now
            self.horizon.urgent = True
            # The held frontier may move again before each answer, and then no answer would ever allow it. The recorded
            # one can always be reported, so readers see progress all the same.
            frontier = self.horizon.lower
            if frontier == reported or not reported.reaches_all(frontier):
                return
        changes = frontier.changes_from(reported)
        if self.quiet_since is None:
            self.quiet_since = SegmentState.of(self.seq, self.progress)
        self.progress.move(changes)
        self._append(m.Frontier(self.seq + 1, self.seq, tuple(changes)))
        self.limits.keep_only(self.progress.upper)

    @property
    def lags(self) -> bool:
        """Whether the held frontier is past the one that may be reported."""
        return self.horizon is not None and self.held.frontier != self.progress.lower.frontier

    def uncovered(self, times: Iterable[Time]) -> list[Time]:
        """The elements of `times` that the catalog must have recorded before they become active or aborted here."""
        if self.horizon is None:
            return []
        progress, covers = self.progress, self.horizon.covers
        return [t for t in times if not (covers(t) or progress.is_aborted(t) or progress.lower.completed(t))]

    # ---- epochs and events ----

    def abort(self, times: Iterable[Time]) -> None:
        """Abort those of `times` that are neither complete nor aborted, and log that."""
        self.admitted.clear()
        fresh = self.progress.abort(times)
        if fresh:
            self.quiet_since = None
        for start in range(0, len(fresh), ABORTS_AN_EVENT):
            self._append(m.Aborted(self.seq + 1, self.seq, fresh[start : start + ABORTS_AN_EVENT]))
        self.limits.keep_only(self.progress.upper)
        for time in fresh:
            for state in self.writers:
                state.aborted(time)

    def _append(self, event: m.Frontier | m.Aborted) -> None:
        """Log a frontier or an abort. It is on disk before anyone sees it: no crash may undo it (E10 durability)."""
        if self.journal is not None:
            self.journal.secure()
        self.history.append(event, self.now)
        self.effects.append(Push(event))

    # ---- what the log on disk has beside the events ----

    def note(self, state: WriterState) -> None:
        """Note the writer's state in the log at the next take."""
        if self.journal is not None:
            self.journal.changed(state)

    def note_forgotten(self, writer: str) -> None:
        """Note in the log that the writer was forgotten."""
        if self.journal is not None:
            self.journal.forgot(writer)

    # ---- replies, in the order of the log ----

    def flush_ack(self, peer: Connection) -> None:
        """Queue the acknowledgement for what a peer has appended so far, so that later answers follow it."""
        ack = self.acks.pop(peer, None)
        if ack is not None:
            number, seq, run, writer = ack
            if self.journal is not None:
                self.journal.ran(writer, number, seq, run)
            self.effects.append(Reply(peer, m.Ack(self.segment, number, seq, run)))

    def reply(self, peer: Connection, message: m.Message) -> None:
        """Answer a writer, after the acknowledgements of what it sent before."""
        self.flush_ack(peer)
        self.effects.append(Reply(peer, message))

    def refuse(self, peer: Connection, op: int, error: EpochalError) -> None:
        """Refuse operation `op`."""
        self.reply(peer, m.Refused(op, error.code, str(error)))
