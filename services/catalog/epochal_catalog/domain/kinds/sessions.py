"""Sessions of writers: the number of a session fences all earlier ones of its writer (E6 sessions).

A writer that is lost, and that a stream waits for, can be released (E46 hold).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sortedcontainers import SortedSet

from epochal.catalog_api import sessions
from epochal.catalog_api.answers import WriterInfo, WriterSession
from epochal.catalog_api.kinds import fields_of
from epochal.catalog_api.sessions import Released
from epochal.errors import StreamComplete, StreamError, WriterFenced
from epochal.protocol.blockers import HolderKind
from epochal_catalog.domain.decisions import Decision, Rules, following
from epochal_catalog.domain.kind import Event, Fence, Kind, Memory, Names, Record, Rows
from epochal_catalog.domain.noun import Call, Items, Listing, Noun, Write
from epochal_catalog.domain.pages import PageRequest, after
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, StreamEntry, check_name

_NO_WRITERS: SortedSet[str] = SortedSet()


@dataclass(frozen=True, slots=True)
class SessionRecord(Record):
    """The newest session of a writer of a stream (E6 sessions); `first`: no earlier one is known here.

    `released`: the session's own number, after the writer was released: what it held when it was lost may be let go
    (E46 hold).
    """

    uid: str
    writer: str
    number: int
    first: bool = False
    released: int | None = None


class Sessions(Memory[SessionRecord]):
    """The newest session of every writer, by the uid of the stream."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, SessionRecord]] = {}
        self._writers: dict[str, SortedSet[str]] = {}
        self._opened: dict[str, dict[str, float]] = {}
        """Uid -> writer -> when it got its newest session, or when that was loaded, in monotonic seconds."""
        self._released: dict[str, dict[str, int]] = {}
        """Uid -> writer -> its newest session, of the writers that were released (E46 hold)."""

    def __len__(self) -> int:
        """How many writers have a session, of all streams."""
        return sum(map(len, self._sessions.values()))

    def get(self, uid: str, writer: str) -> SessionRecord | None:
        """The newest session of a writer; None when it never opened the stream."""
        return self._sessions.get(uid, {}).get(writer)

    def of(self, uid: str) -> Iterable[SessionRecord]:
        """The newest session of every writer that ever opened the stream."""
        return self._sessions.get(uid, {}).values()

    def writers(self, uid: str) -> SortedSet[str]:
        """The ids of all writers that ever had a session of the stream."""
        return self._writers.get(uid, _NO_WRITERS)

    def released(self, uid: str) -> Mapping[str, int]:
        """Writer -> its newest session, for writers that were released and have not opened since (E46 hold)."""
        return self._released.get(uid, {})

    def opened(self, uid: str, writer: str) -> float:
        """When the writer got its newest session, in monotonic seconds; before all times when it has none."""
        return self._opened.get(uid, {}).get(writer, float("-inf"))

    def load(self, record: SessionRecord, now: float) -> None:
        """Take over a stored session."""
        self.put(record, now)

    def put(self, record: SessionRecord, now: float) -> None:
        """Take over a session, or its release."""
        self._sessions.setdefault(record.uid, {})[record.writer] = record
        self._writers.setdefault(record.uid, SortedSet()).add(record.writer)
        released = self._released.setdefault(record.uid, {})
        if record.released is None:
            self._opened.setdefault(record.uid, {})[record.writer] = now
            released.pop(record.writer, None)
        else:
            released[record.writer] = record.released

    def remove(self, record: SessionRecord) -> None:
        """Forget a writer."""
        for known in (self._sessions, self._opened, self._released):
            known.get(record.uid, {}).pop(record.writer, None)
        self._writers[record.uid].discard(record.writer)

    def remove_stream(self, uid: str) -> None:
        """Forget all writers of a stream that was deleted."""
        for by_stream in (self._sessions, self._writers, self._opened, self._released):
            by_stream.pop(uid, None)


def _released_or_newer(new: Any, old: Any) -> Any:
    """The same number is written again only to release it (E46 hold)."""
    return (new.number > old.number) | ((new.number == old.number) & (new.released == new.number))


def _event(record: SessionRecord, names: Names) -> Event:
    name = names(record.uid)
    return f"{name}/{record.writer}", {**fields_of(record), "stream": name}


SESSIONS: Kind[SessionRecord, Sessions] = Kind(
    "session",
    Rows(
        SessionRecord,
        "sessions",
        key=("uid", "writer"),
        fence=Fence("number", allows=_released_or_newer),
        of_stream=True,
    ),
    memory=lambda _settings, _reading: Sessions(),
    event=_event,
)


class WriterNotFound(StreamError):
    """No writer of that id ever opened the stream."""

    code = "writer_not_found"


class WriterNotLost(StreamError):
    """A writer that no segment waits for as lost cannot be released (E46 hold)."""

    code = "writer_not_lost"


def open_session(rules: Rules, call: Call[None]) -> Decision[WriterSession]:
    """Give a writer its next session number (E6 sessions); with `after`, only if that is still its newest.

    Raises `StreamNotFound`, `StreamComplete`, and `WriterFenced` when another number was given out since.
    """
    entry, writer, after = _stream(rules, call), call.path["writer"], call.query.get("after")
    if entry.complete:
        raise StreamComplete(
            f"the stream {entry.qualified} is complete: all its writers have finished and it can only be read;"
            " delete it and apply it again to publish more"
        )
    uid = entry.record.uid
    last = rules.state[SESSIONS].get(uid, writer)
    before = None if last is None else last.number
    if after is not None and after != before:
        raise WriterFenced(f"the newest session of writer {writer!r} is {before}, not {after}")
    number = following(before or 0, rules.floor)
    answer = WriterSession(number, uid, first=last is None, before=before)
    return rules.write(lambda: answer, SessionRecord(uid, writer, number, first=last is None))


def forget_writer(rules: Rules, call: Call[None]) -> Decision[None]:
    """Forget a writer that has left and never comes again, such as one without an id of its own.

    Raises `StreamNotFound`, `WriterNotFound`, and `WriterFenced` unless `session` is the only one that it ever had:
    else a later session could not know that an earlier one had left something (E6 sessions).
    """
    writer, session = call.path["writer"], call.query["session"]
    known = _session(rules.state, _stream(rules, call), writer)
    if known.number != session or not known.first:
        raise WriterFenced(
            f"session {session} is not the only one of writer {writer!r}, whose newest is {known.number}"
        )
    return rules.write(lambda: None, SESSIONS.removed(known))


def release(rules: Rules, call: Call[None]) -> Decision[Released]:
    """Release a lost writer; its publishers are notified when they renew (E46 hold). A repeat changes nothing.

    Raises `StreamNotFound`, `WriterNotFound`, and `WriterNotLost` unless a segment waits for it by its last report.
    """
    entry, writer = _stream(rules, call), call.path["writer"]
    session = _session(rules.state, entry, writer)
    answer = Released(writer, session.number)
    if session.released is not None:
        return Decision((), lambda: answer)
    if not _lost_at(rules.state, entry, writer):
        waits = _waited_for(rules.state, entry)
        raise WriterNotLost(f"no segment of {entry.qualified} waits for writer {writer!r} as lost: {waits}")
    return rules.write(lambda: answer, replace(session, released=session.number))


def _stream(rules: Rules, call: Call[None]) -> StreamEntry:
    check_name(*call.stream)
    return rules.state[STREAMS].stream(*call.stream)


def _session(state: CatalogState, entry: StreamEntry, writer: str) -> SessionRecord:
    """The newest session of a writer; raises `WriterNotFound`."""
    session = state[SESSIONS].get(entry.record.uid, writer)
    if session is None:
        raise WriterNotFound(
            f"no writer {writer!r} has ever opened {entry.qualified}; `epochal get writers {entry.qualified}`"
            " lists them"
        )
    return session


def _lost_at(state: CatalogState, entry: StreamEntry, writer: str) -> list[str]:
    """The open segments that hold time for the writer as lost, by reports made since its newest session."""
    opened = state[SESSIONS].opened(entry.record.uid, writer)
    found = ((segment.id, state.report_of(segment)) for segment in entry.open_segments())
    return [key for key, known in found if known is not None and known[0] >= opened and known[1].lost(writer)]


def _waited_for(state: CatalogState, entry: StreamEntry) -> str:
    """The lost writers that the segments wait for, in words, or why there are none."""
    if entry.manifest.spec.progress.when_lost != "hold":
        return "none ever does with progress.whenLost: release, which lets lost writers go by itself"
    found = ((segment.id, state.report_of(segment)) for segment in entry.open_segments())
    lost = [
        f"segment {key} waits for {held.writer}"
        for key, known in found
        if known is not None
        for held in known[1].holders
        if held.kind == HolderKind.LOST
    ]
    waits = ", ".join(dict.fromkeys(lost[:10])) or "none waits for a lost writer"
    return f"{waits}; a publisher reports within a second, and a writer counts as lost after progress.writerTimeout"


def view(state: CatalogState, entry: StreamEntry, writer: str) -> WriterInfo:
    """A writer of a stream: its last session, and whether some segment's publisher counts it (E6 sessions)."""
    is_open = any(writer in item.writers for item in entry.segments.values())
    session = state[SESSIONS].get(entry.record.uid, writer)
    return WriterInfo(writer, 0 if session is None else session.number, is_open)


def _items(state: CatalogState, asked: PageRequest, uid: str | None, _now: float) -> Items:
    entry = state[STREAMS].by_uid(uid or "")
    assert entry is not None, "the path names a stream"
    for key in after(state[SESSIONS].writers(entry.record.uid), asked.after):
        yield key, view(state, entry, key).to_json


NOUN = Noun(
    SESSIONS,
    routes=(
        Listing(sessions.LIST, _items),
        Write(sessions.OPEN, open_session),
        Write(sessions.FORGET, forget_writer),
        Write(sessions.RELEASE, release),
    ),
    errors={WriterNotFound: 404, WriterNotLost: 409},
)
