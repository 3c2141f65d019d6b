"""The notes that a log keeps beside its events, so that the next incarnation goes on where the last one ended.

Events hold what subscribers need. A publisher also needs to know its writers, what each of them holds, and which
numbers it has logged for each: that is in the notes. They are written in the same group commit as the events, so that
after a crash both are there, or neither.

Each take of the publisher's effects is one entry of the log. Notes give the state at the end of the take, not what
happened within it, so restoring needs no second copy of the publisher's rules.

Sources: rules E3, E6, E7, E10; docs/log.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgpack

from epochal.errors import LocalProtocolError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.history import SegmentState, apply_in_lull, retained_size
from epochal.protocol.progress import Progress
from epochal.protocol.publisher.append_numbers import fingerprint
from epochal.protocol.publisher.logged_sources import LoggedSources
from epochal.protocol.publisher.writer_state import WriterIdentity, WriterState, restored_presence
from epochal.protocol.times import Time

KEPT_RUNS = 64
"""Runs of a writer's last appends that a checkpoint keeps; older ones are answered with the oldest known position."""

KEPT_FINGERPRINTS = 32 * 2**20
"""Most bytes of fingerprints in a checkpoint, for all writers together; room that one writer leaves goes to others."""

KEPT_DETAIL = 100
"""Characters that a log keeps of the reason for a refused append; the error code is kept too and says the same."""


class Ran(NamedTuple):
    """The last `run` appends of a writer, up to `number`, are the events up to `seq`, in order."""

    writer: str
    number: int
    seq: int
    run: int


class Denied(NamedTuple):
    """Append `number` was refused for good."""

    writer: str
    number: int
    code: str
    detail: str


class WriterIs(NamedTuple):
    """Everything about one writer that outlives its connection."""

    writer: str
    session: int
    under: str | None
    number: int
    held: tuple[Time, ...]
    touched: tuple[Time, ...]
    present: bool
    lost: bool
    granted: bool
    closed: bool
    source: int
    whole: int
    source_seq: int
    torn: bool
    refusing: bool
    numbered: tuple[Time, ...]


class WriterForgotten(NamedTuple):
    """The writer was forgotten (E6 sessions)."""

    writer: str


class PublisherIs(NamedTuple):
    """What the publisher itself holds and waits for (E5)."""

    held: tuple[Time, ...]
    enough_writers: bool
    awaited: tuple[str, ...]
    opened: tuple[str, ...]
    finishing: bool
    early: bool
    complete: bool
    finished: bool
    """Whether a writer has finished (E47)."""
    closed: tuple[Time, ...]
    """The capability of the writer that closed last (E3 lost writers); empty once the frontier has passed it."""


class EpochIs(NamedTuple):
    """An active epoch has `size` bytes in the log so far (E13 retention)."""

    time: Time
    size: int


class Fingerprints(NamedTuple):
    """The fingerprints of a writer's last appends, as `AppendNumbers.fingerprints` returns them (E49).

    Only checkpoints have them: those of later appends are computed from the events of the log.
    """

    writer: str
    last: int
    numbers: bytes
    prints: bytes


Note: TypeAlias = Ran | Denied | WriterIs | WriterForgotten | PublisherIs | EpochIs | Fingerprints

KINDS: dict[int, type[Any]] = {
    1: Ran, 2: Denied, 3: WriterIs, 4: WriterForgotten, 5: PublisherIs, 6: EpochIs, 7: Fingerprints,
}  # fmt: skip
_KIND_OF = {note: kind for kind, note in KINDS.items()}
_pack = msgpack.Packer(autoreset=True).pack


def encode_notes(notes: Iterable[Note]) -> bytes:
    """Notes as msgpack arrays `[kind, field...]`, one after the other."""
    return b"".join([_pack([_KIND_OF[type(note)], *note]) for note in notes])


def decode_notes(data: bytes) -> list[Note]:
    """Read what `encode_notes` wrote. Raises `LocalProtocolError` for anything else, also for a newer version's."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    notes: list[Note] = []
    try:
        while unpacker.tell() < len(data):  # iterating would silently end at half a note
            kind, *fields = unpacker.unpack()
            notes.append(KINDS[kind](*fields))
    except (TypeError, KeyError, ValueError, msgpack.OutOfData) as error:
        raise LocalProtocolError(f"the log holds notes that this version cannot read: {error!r}") from None
    return notes


def writer_note(state: WriterState) -> WriterIs:
    """The writer as it is now."""
    who, sources = state.identity, state.sources
    return WriterIs(
        who.writer, who.session, who.under, state.appends.last, tuple(state.held), tuple(sorted(state.touched)),
        state.present, state.lost, state.granted, state.closed,
        sources.highest, sources.whole, sources.seq, sources.torn, sources.refusing, tuple(sorted(sources.times)),
    )  # fmt: skip


class Entry(NamedTuple):
    """What one take of a publisher adds to its log, after the events among its effects.

    `secure`: nothing of the take may be sent to anyone before it is on disk, under any durability policy
    (E10 durability).
    """

    notes: tuple[Note, ...]
    secure: bool


class Journal:
    """Collects the notes of one take. Costs one call for each run of appends and one for each change of a writer."""

    def __init__(self) -> None:
        self._runs: list[Ran | Denied] = []
        self._changed: dict[str, WriterState] = {}
        self._forgotten: list[Note] = []
        self._publisher: PublisherIs | None = None
        self._secure = False

    def ran(self, writer: str, number: int, seq: int, run: int) -> None:
        """Appends were logged."""
        self._runs.append(Ran(writer, number, seq, run))

    def denied(self, writer: str, number: int, code: str, detail: str) -> None:
        """An append was refused for good."""
        self._runs.append(Denied(writer, number, code, detail[:KEPT_DETAIL]))

    def changed(self, state: WriterState) -> None:
        """Something else about a writer changed. The note will give its state at the take."""
        self._changed[state.identity.writer] = state

    def forgot(self, writer: str) -> None:
        """A writer was forgotten. Its pending notes are dropped, because its append numbers may be used again."""
        self._changed.pop(writer, None)
        self._runs = [note for note in self._runs if note[0] != writer]
        self._forgotten.append(WriterForgotten(writer))

    def secure(self) -> None:
        """Require that what is logged now is on disk before anyone gets it, under any policy (E10 durability)."""
        self._secure = True

    def take(self, publisher: PublisherIs) -> Entry | None:
        """All notes since the last take; None if there are none."""
        own: list[Note] = [] if publisher == self._publisher else [publisher]
        notes = (*self._forgotten, *map(writer_note, self._changed.values()), *self._runs, *own)
        if not notes and not self._secure:
            return None
        secure = self._secure or len(notes) > len(self._runs)
        self._publisher = publisher
        self._runs = []
        self._forgotten = []
        self._secure = False
        self._changed.clear()
        return Entry(notes, secure)


# ---- restoring ----


@dataclass(slots=True)
class Restored:
    """A publisher's state as its log has it: `state` after the last event, `sizes` of active epochs in bytes."""

    state: SegmentState
    publisher: PublisherIs
    writers: Sequence[WriterState]
    sizes: Mapping[Time, int]
    quiet_since: SegmentState | None = None
    """The state since which only the frontier has moved; None if a batch or an abort was last (E13 retention)."""


@dataclass(slots=True)
class Restoring:
    """Replays a log from a checkpoint: first the checkpoint's `state` and `notes`, then each entry in order."""

    _progress: Progress
    _seq: int
    _quiet_since: SegmentState | None = None
    _publisher: PublisherIs | None = None
    _writers: dict[str, WriterState] = field(default_factory=dict)
    _sizes: dict[Time, int] = field(default_factory=dict)

    @classmethod
    def after(cls, state: SegmentState, notes: bytes, quiet_since: SegmentState | None = None) -> "Restoring":
        """Begin with a checkpoint: the state after an event, and the notes of it.

        `quiet_since`: the state since which only the frontier had moved.
        """
        restoring = cls(state.progress(), state.seq, quiet_since)
        restoring._note(decode_notes(notes), [], {})
        return restoring

    def entry(self, events: Iterable[m.Event], notes: bytes) -> None:
        """Apply the next entry of the log: the events that directly follow, and the notes after them.

        Raises `LocalProtocolError` for an event that is not the next one.
        """
        marks: list[int] = []
        sources: dict[int, int] = {}
        for event in events:
            if event.seq != self._seq + 1:
                raise LocalProtocolError(f"event {event.seq} is in the log after event {self._seq}")
            self._seq = event.seq
            self._quiet_since = apply_in_lull(self._quiet_since, self._progress, event)
            if type(event) is m.Data:
                self._sizes[event.time] = self._sizes.get(event.time, 0) + retained_size(event)
                if event.meta is not None and event.meta.source is not None:
                    sources[event.seq] = event.meta.source
            marks.append(fingerprint(event.time, event.records, event.crc) if type(event) is m.Data else 0)
        self._note(decode_notes(notes), marks, sources)

    def _note(self, notes: Iterable[Note], marks: Sequence[int], sources: Mapping[int, int]) -> None:
        """Apply the notes of one entry.

        `marks` are the fingerprints of its events, 0 for one that is not data; `sources` their source numbers, by seq.
        """
        for note in notes:
            match note:
                case Ran(writer, number, seq, run):
                    end = len(marks) - (self._seq - seq)
                    state = self._writer(writer)
                    state.appends.restore_run(number, seq, run, marks[max(end - run, 0) : max(end, 0)])
                    for at in range(seq - run + 1, seq + 1) if sources else ():
                        if sources.get(at, -1) > state.sources.highest:
                            state.sources.highest, state.sources.seq = sources[at], at
                case Fingerprints():
                    self._remember(note)
                case Denied(writer, number, code, detail):
                    state = self._writer(writer)
                    known = state.appends.last
                    state.appends.refused(number, code, detail)
                    state.appends.last = max(known, number)
                case WriterIs():
                    self._is(note)
                case WriterForgotten(writer):
                    self._writers.pop(writer, None)
                case PublisherIs():
                    self._publisher = note
                case EpochIs(time, size):
                    self._sizes[time] = size

    def _remember(self, note: Fingerprints) -> None:
        try:
            self._writer(note.writer).appends.restore_fingerprints(note.last, note.numbers, note.prints)
        except (ValueError, OverflowError) as error:
            raise LocalProtocolError(f"the log holds fingerprints that are not valid: {error}") from None

    def _writer(self, writer: str) -> WriterState:
        """The writer of that id, as it is known so far."""
        if writer not in self._writers:
            self._writers[writer] = WriterState(WriterIdentity(writer, 0, b"", None), 0.0)
        return self._writers[writer]

    def _is(self, note: WriterIs) -> None:
        state = self._writer(note.writer)
        state.identity.session, state.identity.under = note.session, note.under
        state.appends.last = max(note.number, state.appends.last)
        state.held, state.touched = Antichain(note.held), set(note.touched)
        state.sources = LoggedSources(
            note.source, note.source_seq, note.whole, note.torn, note.refusing, set(note.numbered)
        )
        state.presence = restored_presence(present=note.present, lost=note.lost)
        state.granted, state.closed = note.present and note.granted, note.closed

    def end(self) -> Restored:
        """The state at the end of the log. Raises `LocalProtocolError` when its notes and its events disagree."""
        if self._publisher is None:
            raise LocalProtocolError("the log does not say what its publisher held")
        for state in self._writers.values():
            for time in state.touched & self._progress.aborted:
                state.aborted(time)
            state.forget_left()
        held = [time for state in self._writers.values() for time in state.held]
        lower = Antichain([*self._publisher.held, *held])
        if lower != self._progress.lower.frontier:
            detail = f"{list(lower)!r} is held, and the lower frontier is {list(self._progress.lower.frontier)!r}"
            raise LocalProtocolError(f"the notes of the log and its events disagree: {detail}")
        active = self._progress.upper.active
        sizes = {time: size for time, size in self._sizes.items() if time in active}
        return Restored(
            SegmentState.of(self._seq, self._progress), self._publisher, list(self._writers.values()), sizes,
            self._quiet_since,
        )  # fmt: skip


def checkpoint_notes(publisher: PublisherIs, writers: Iterable[WriterState], sizes: Mapping[Time, int]) -> list[Note]:
    """All notes that a log file must begin with."""
    notes: list[Note] = [EpochIs(time, size) for time, size in sorted(sizes.items())]
    known = list(writers)
    share = fair_share([state.appends.kept_bytes for state in known], KEPT_FINGERPRINTS)
    for state in known:
        writer, appends = state.identity.writer, state.appends
        denials = list(appends.denials())
        if not state.present:  # it may come back and send its last appends again (E49)
            denials = denials[-KEPT_RUNS:]
        notes += [Ran(writer, number, seq, run) for number, seq, run in appends.runs(KEPT_RUNS)]
        notes += [Denied(writer, number, code, detail[:KEPT_DETAIL]) for number, (code, detail) in denials]
        if (marks := appends.fingerprints(share))[2]:
            notes.append(Fingerprints(writer, *marks))
        notes.append(writer_note(state))
    return [*notes, publisher]


def fair_share(sizes: Sequence[int], room: int) -> int:
    """The largest limit for each that keeps all together within `room`. What small ones leave goes to the others.

    >>> fair_share([1, 9, 9], 11), fair_share([1, 2], 11)
    (5, 2)
    """
    share = 0
    # Smallest first: one that needs less than an equal share of the room leaves the rest to all larger ones. From the
    # first one that needs more on, all get the same share.
    for taken, size in enumerate(sorted(sizes)):
        share = min(size, room // (len(sizes) - taken))
        room -= share
    return share
