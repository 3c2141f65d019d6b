"""The rules, driven at random against a model of plain dicts, with restarts in between; no server, no clock."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epochal.errors import EpochalError, StreamComplete, StreamGone, StreamNotFound, Superseded
from epochal.resources import StreamManifest
from epochal_catalog.decisions import Decision
from epochal_catalog.errors import UnknownPublisher
from epochal_catalog.records import (
    ChangeRecord,
    ChangesForgotten,
    CounterRecord,
    LeaseRenewed,
    RegistrationRecord,
    RegistrationRemoved,
    SegmentRecord,
    SessionRecord,
    StreamRecord,
    StreamRemoved,
)
from epochal_catalog.registry import FinishingMark, Registering, Registry, Report
from epochal_catalog.state import State

NAMES = st.sampled_from(["a", "b"])
WRITERS = st.sampled_from(["w1", "w2"])
PUBLISHERS = st.sampled_from(["p1", "p2", "p3"])
SEGMENTS = ("0", "1")


def manifest(name: str) -> StreamManifest:
    return StreamManifest.from_document(
        {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}, "segments": len(SEGMENTS)},
        }
    )


def key_of(record: Any) -> tuple[Any, ...]:
    match record:
        case StreamRecord():
            return (0, record.uid)
        case SegmentRecord():
            return (1, record.uid, record.lo)
        case RegistrationRecord():
            return (2, record.publisher)
        case SessionRecord():
            return (3, record.uid, record.writer)
        case ChangeRecord():
            return (5, record.revision)
        case _:
            return (4, record.name)


class Disk:
    """What the store would hold."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Any] = {}

    def write(self, changes: tuple[Any, ...]) -> None:
        for change in changes:
            match change:
                case StreamRemoved(uid):
                    self.rows = {
                        key: row
                        for key, row in self.rows.items()
                        if key[0] in (2, 4, 5) or getattr(row, "uid", "") != uid
                    }
                case RegistrationRemoved(publisher, _):
                    self.rows.pop((2, publisher), None)
                case LeaseRenewed():
                    pass
                case ChangesForgotten(before):
                    self.rows = {key: row for key, row in self.rows.items() if key[0] != 5 or key[1] >= before}
                case _:
                    self.rows[key_of(change)] = change

    def records(self) -> list[Any]:
        return [self.rows[key] for key in sorted(self.rows)]


@dataclass
class ModelSegment:
    token: int = 0
    incarnation: int = 0
    lower: int | None = None
    finishing: bool = False
    number: int = -1


@dataclass
class ModelStream:
    uid: str
    complete: bool = False
    sessions: dict[str, int] = field(default_factory=dict)
    segments: dict[str, ModelSegment] = field(default_factory=lambda: {name: ModelSegment() for name in SEGMENTS})


@dataclass
class ModelPublisher:
    token: int
    stream: str
    uid: str
    segments: dict[str, int]


class CatalogMachine(RuleBasedStateMachine):
    """Both sides take every step; they must answer alike, and show the same after it, also after a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(ttl=10.0, watch_events=8)
        self.disk = Disk()
        self.instances = 0
        self.streams: dict[str, ModelStream] = {}
        self.publishers: dict[str, ModelPublisher] = {}
        self.uids: list[str] = []
        self.token = 0

    def do(self, decide: Any) -> Any:
        """The answer, or the type of the error."""
        try:
            decision: Decision[Any] = decide(Registry(self.state))
        except EpochalError as error:
            return type(error)
        self.disk.write(decision.changes)
        self.state.commit(decision.changes, 0.0)
        return decision.answer()

    @rule(name=NAMES)
    def apply(self, name: str) -> None:
        uid = f"u{len(self.uids)}"
        entry, created = self.do(lambda registry: registry.apply(manifest(name), uid, "now"))
        assert created == (name not in self.streams)
        if created:
            self.uids.append(uid)
            self.streams[name] = ModelStream(uid)
        assert entry.record.uid == self.streams[name].uid

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        answer = self.do(lambda registry: registry.delete("demo", name))
        assert answer is (None if self.streams.pop(name, None) else StreamNotFound)

    @rule(name=NAMES, writer=WRITERS)
    def session(self, name: str, writer: str) -> None:
        answer = self.do(lambda registry: registry.open_session("demo", name, writer))
        stream = self.streams.get(name)
        if stream is None:
            assert answer is StreamNotFound
        elif stream.complete:
            assert answer is StreamComplete
        else:
            stream.sessions[writer] = stream.sessions.get(writer, 0) + 1
            assert answer == {"session": stream.sessions[writer], "uid": stream.uid}

    @precondition(lambda self: self.uids)
    @rule(name=NAMES, publisher=PUBLISHERS, taken=st.sampled_from([{*SEGMENTS}, {"0"}, {"1"}]), data=st.data())
    def register(self, name: str, publisher: str, taken: set[str], data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self.uids))
        self.instances += 1
        asked = Registering(publisher, f"i{self.instances}", ("demo", name), uid, tuple(sorted(taken)), {})
        answer = self.do(lambda registry: registry.register(asked, "now"))
        stream = self.streams.get(name)
        if stream is None:
            assert answer is StreamNotFound
        elif stream.uid != uid:
            assert answer is StreamGone
        else:
            self.token += 1
            assert answer["token"] == self.token
            for granted in answer["segments"]:
                segment = stream.segments[granted["id"]]
                segment.incarnation, segment.token, segment.number = segment.incarnation + 1, self.token, -1
                assert granted["incarnation"] == segment.incarnation
                assert granted["lower"] == (None if segment.lower is None else [segment.lower])
                assert (granted["finishing"], granted["complete"]) == (segment.finishing, stream.complete)
            mine = {segment: stream.segments[segment].incarnation for segment in taken}
            self.publishers[publisher] = ModelPublisher(self.token, name, uid, mine)
            revision = self.state.revision
            assert self.do(lambda registry: registry.register(asked, "later")) == answer  # its answer was lost
            assert self.state.revision == revision

    def judge(self, publisher: str, token: int) -> type[EpochalError] | tuple[ModelPublisher, ModelStream]:
        known = self.publishers.get(publisher)
        if known is None:
            return UnknownPublisher
        if known.token != token:
            return Superseded
        stream = self.streams.get(known.stream)
        if stream is None or stream.uid != known.uid:
            return StreamGone
        if any(stream.segments[segment].token != token for segment in known.segments):
            return Superseded
        return known, stream

    @rule(publisher=PUBLISHERS, segment=st.sampled_from(SEGMENTS), back=st.integers(0, 2), lower=st.integers(0, 9))
    def renew(self, publisher: str, segment: str, back: int, lower: int) -> None:
        known = self.publishers.get(publisher)
        token = (known.token if known else 1) - (back == 2)
        incarnation = (known.segments.get(segment, 1) if known else 1) - (back == 1)
        report = {segment: Report(incarnation, [lower])}
        answer = self.do(lambda registry: registry.renew(publisher, token, report))
        match self.judge(publisher, token):
            case (owner, stream):
                if owner.segments.get(segment) != incarnation:
                    assert answer is Superseded
                else:
                    stream.segments[segment].lower = lower
                    assert answer == {"ttl": 10.0, "complete": stream.complete}
            case error:
                assert answer is error

    @rule(publisher=PUBLISHERS, segment=st.sampled_from(SEGMENTS), number=st.integers(0, 9), finishing=st.booleans())
    def mark(self, publisher: str, segment: str, number: int, finishing: bool) -> None:
        self.finish(publisher, segment, number, finishing)

    @rule(publisher=PUBLISHERS)
    def mark_all(self, publisher: str) -> None:
        for segment in SEGMENTS:
            self.finish(publisher, segment, 6, True)

    def finish(self, publisher: str, segment: str, number: int, finishing: bool) -> None:
        known = self.publishers.get(publisher)
        if known is None or known.stream not in self.streams:
            return
        if segment not in known.segments:
            [segment] = known.segments
        mark = FinishingMark(segment, publisher, known.token, known.segments[segment], number, finishing)
        answer = self.do(lambda registry: registry.finish("demo", known.stream, mark, "now"))
        judged = self.judge(publisher, known.token)
        if not isinstance(judged, tuple):
            assert answer is judged
            return
        stream = judged[1]
        own = stream.segments[segment]
        if not stream.complete and number > own.number:
            own.finishing, own.number = finishing, number
            stream.complete = all(other.finishing for other in stream.segments.values())
        assert answer == {"complete": stream.complete}

    @rule(publisher=PUBLISHERS, wrong=st.booleans())
    def deregister(self, publisher: str, wrong: bool) -> None:
        known = self.publishers.get(publisher)
        token = (known.token if known else 1) + wrong
        answer = self.do(lambda registry: registry.deregister(publisher, token))
        if known is None:
            assert answer is UnknownPublisher
        elif wrong:
            assert answer is Superseded
        else:
            assert answer is None
            del self.publishers[publisher]

    @rule()
    def restart(self) -> None:
        old, self.state = self.state.history, State(ttl=10.0, watch_events=8)
        self.state.load(self.disk.records(), 0.0)
        new = self.state.history
        assert (new.floor, new.newest, len(new)) == (old.floor, old.newest, len(old))
        assert new.read(new.floor, 1 << 20) == old.read(old.floor, 1 << 20)

    @invariant()
    def both_show_the_same(self) -> None:
        shown = {entry.record.name: entry for entry in self.state.streams()}
        assert shown.keys() == self.streams.keys()
        assert self.state.last_token == self.token
        assert self.state.history.newest == self.state.revision
        assert self.state.registrations.keys() == self.publishers.keys()
        for name, stream in self.streams.items():
            entry = shown[name]
            assert (entry.record.uid, entry.complete) == (stream.uid, stream.complete)
            assert {writer: self.state.session(stream.uid, writer) for writer in stream.sessions} == stream.sessions
            for segment in entry.segments.values():
                model = stream.segments[segment.id]
                owner = next((key for key, item in self.publishers.items() if item.token == model.token), None)
                found = self.state.publisher_of(segment)
                assert (found.publisher if found else None) == owner
                assert (segment.incarnation, segment.finishing) == (model.incarnation, model.finishing)
                assert segment.lower == (None if model.lower is None else [model.lower])


TestCatalogMachine = pytest.mark.rule("S26", "S29", "E6", "E7", "E11", "E12")(CatalogMachine.TestCase)
TestCatalogMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.rule("E7")
def test_nothing_is_written_after_completion() -> None:
    state = State(ttl=10.0)
    registry = Registry(state)
    asked = Registering("p", "i", ("demo", "a"), "u", SEGMENTS, {})
    state.commit(registry.apply(manifest("a"), "u", "now").changes, 0.0)
    state.commit(registry.register(asked, "now").changes, 0.0)
    for segment in SEGMENTS:
        mark = FinishingMark(segment, "p", 1, 1, 1, True)
        state.commit(registry.finish("demo", "a", mark, "then").changes, 0.0)
    cancelled = registry.finish("demo", "a", FinishingMark("0", "p", 1, 1, 2, False), "later")
    assert (cancelled.changes, cancelled.answer()) == ((), {"complete": True})
    assert state.stream("demo", "a").record.completed == "then"


def test_a_decision_changes_nothing_by_itself() -> None:
    state = State(ttl=10.0)
    decision = Registry(state).apply(manifest("a"), "u", "now")
    assert state.find("demo", "a") is None
    assert state.commit(decision.changes, 0.0) == {"demo/a"}
    assert state.commit([CounterRecord("revision", 9)], 0.0) == set()
    assert state.stream("demo", "a").record.uid == "u"
