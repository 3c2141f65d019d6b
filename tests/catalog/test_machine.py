"""Every operation of the catalog, driven at random against a model of plain dicts, on a real database.

Both sides take each step and must answer alike and show the same after it: through restarts, lapsed leases and stalls.
A watcher follows all along and must arrive at what the catalog shows; others resume from anywhere.
"""

import asyncio
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epochal.catalog_api.kinds import Answer
from epochal.catalog_api.requests import (
    Addresses,
    Finishing,
    Register,
    RenewSubscription,
    ReportedHolder,
    SegmentReport,
    Subscribe,
)
from epochal.errors import (
    EpochalError,
    HistoryTruncated,
    StreamComplete,
    StreamGone,
    StreamNotFound,
    Superseded,
    WriterFenced,
)
from epochal.resources.manifest import StreamManifest
from epochal.service.errors import InvalidRequest, Overloaded, UnknownSubscription
from epochal_catalog.domain.decisions import Rules, numbered
from epochal_catalog.domain.kinds import KINDS, publishers, sessions, streams, subscriptions
from epochal_catalog.domain.kinds.publishers import UnknownPublisher
from epochal_catalog.domain.kinds.sessions import SESSIONS, WriterNotFound, WriterNotLost
from epochal_catalog.domain.kinds.streams import ImmutableField
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS, NotOwner
from epochal_catalog.domain.noun import Call
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS
from epochal_catalog.errors import (
    ReservedName,
    RevisionAhead,
)
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_catalog.storage.store import CatalogStore

NAMES = st.sampled_from(["a", "b"])
WRITERS = st.sampled_from(["w1", "w2"])
PUBLISHER_IDS = st.sampled_from(["p1", "p2", "p3"])
SEGMENTS = ("0", "1")
WHICH = st.integers(0, 5)
TTL, SUBSCRIPTION_TTL, FORGET_AFTER = 10.0, 30.0, 60.0
KEPT, MOST = 20, 4
PROBES = 10
"""Requests that are decided about again after each step."""
SETTINGS = CatalogSettings(lease_ttl=TTL, subscription_ttl=SUBSCRIPTION_TTL, max_subscriptions=MOST, watch_events=KEPT)
MEMORY = Path("/dev/shm")
"""Where an fsync costs nothing; what the disk does is not what is tried here."""


def called(name: str) -> Call[None]:
    return Call(None, {"namespace": "demo", "name": name}, {}, "now", "", 0)


def manifest(name: str, writers: int = 1, segments: int = len(SEGMENTS)) -> StreamManifest:
    return StreamManifest.from_document(
        {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": {
                "time": {"shape": "int"},
                "payload": {"encoding": "bytes"},
                "segments": segments,
                "progress": {"minWriters": writers},
            },
        }
    )


@dataclass
class ModelSegment:
    token: int = 0
    incarnation: int = 0
    lower: int | None = None
    finishing: bool = False
    number: int = -1
    horizon: list[int] | None = None
    record: int = -1
    marks: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    lost: tuple[int, float, str] | None = None
    """By which token, when and for whom the segment was last reported to wait."""


@dataclass
class ModelStream:
    uid: str
    writers: int = 1
    generation: int = 1
    complete: bool = False
    sessions: dict[str, int] = field(default_factory=dict)
    returned: set[str] = field(default_factory=set)
    opened: dict[str, float] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    segments: dict[str, ModelSegment] = field(default_factory=lambda: {name: ModelSegment() for name in SEGMENTS})


@dataclass
class Leased:
    expires: float
    live: bool = True
    verified: bool = True


@dataclass
class ModelPublisher:
    token: int
    stream: str
    uid: str
    segments: dict[str, int]
    lease: Leased


@dataclass
class ModelSubscription:
    token: int
    stream: str
    lease: Leased
    lower: int | None = None


class Probe:
    """What a rule decides about a request, which is not done, and what it read for that."""

    def __init__(self, state: CatalogState, rules: Rules, decide: Any) -> None:
        self.state, self.rules, self.decide = state, rules, decide
        self.outcome, keys = state.reading.during(self.decided, rules)
        self.reads = state.versions_of(keys)

    def decided(self, rules: Rules) -> Any:
        try:
            return self.decide(rules).changes
        except EpochalError as error:
            return type(error)

    def judged(self) -> "Probe":
        """The same request as it is decided now."""
        now = Probe(self.state, self.rules, self.decide)
        assert now.outcome == self.outcome or not self.state.holds(self.reads), f"{self.reads} does not name all"
        return now


class Follower:
    """Puts the changes together to what there is, as a watcher would."""

    def __init__(self) -> None:
        self.revision = 0
        self.frames: dict[int, bytes] = {}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def take(self, revision: int, data: bytes) -> None:
        for frame in data.split(b"\n\n")[:-1]:
            change = json.loads(frame.split(b"\ndata: ")[1])
            assert change["revision"] > self.revision, "a change came twice, or out of order"
            self.revision = change["revision"]
            self.frames[self.revision] = frame
            self._put(change["kind"], change["name"], change["object"])
        self.revision = max(self.revision, revision)

    def _put(self, kind: str, name: str, value: dict[str, Any] | None) -> None:
        if value is not None:
            self.objects[kind, name] = value
            return
        del self.objects[kind, name]
        if kind == "stream":  # takes along what hangs on it
            gone = [key for key, item in self.objects.items() if key[0] != "publisher" and item.get("stream") == name]
            for key in gone:
                del self.objects[key]

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: value for (found, name), value in self.objects.items() if found == kind}


class CatalogMachine(RuleBasedStateMachine):
    """The catalog's rules, memory and database on one side, dicts on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory(prefix="catalog-", dir=MEMORY if MEMORY.is_dir() else None)
        self.now = 1000.0
        self.instances = self.token = self.floor = 0
        self.streams: dict[str, ModelStream] = {}
        self.publishers: dict[str, ModelPublisher] = {}
        self.subscribers: dict[str, ModelSubscription] = {}
        self.uids: list[str] = []
        self.ids: list[str] = []
        self.follower = Follower()

    @initialize()
    def begin(self) -> None:
        self.open()
        self.apply("a", 1)
        self.register("a", "p1", {*SEGMENTS}, 1)

    def open(self) -> None:
        self.store = CatalogStore(Path(self.directory.name), 5.0)
        self.state = CatalogState(KINDS, SETTINGS)
        self.state.load(self.loop.run_until_complete(self.store.open()), self.now)
        self.state.sweep(self.now, 1e9)
        self.probes: list[Probe] = []

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.loop.run_until_complete(self.store.close())
        self.loop.close()
        self.directory.cleanup()

    def do(self, decide: Any) -> Any:
        """The answer, or the type of the error; afterwards what time brings about by itself is done too."""
        self.judge_probes()
        self.probes.append(Probe(self.state, Rules(self.state, self.floor), decide))
        try:
            answer = self._step(decide(Rules(self.state, self.floor)))
        except EpochalError as error:
            answer = type(error)
        self.judge_probes()
        self.tidy()
        return answer

    def judge_probes(self) -> None:
        """Rules have decided about earlier requests; where nothing that they read has changed, they decide the same."""
        self.probes = [probe.judged() for probe in self.probes[-PROBES:]]

    def renewed(self, publisher: str, token: int, reports: dict[str, SegmentReport]) -> Any:
        """The answer to a renewal, whose report is taken first, as the catalog does."""
        asked = publishers.Renewing(publisher, token, reports)
        with suppress(EpochalError):  # the renewal is refused for the same reason
            self.state.commit([publishers.report(self.state, asked)], self.now)
        return self.do(lambda rules: publishers.renew(rules, asked))

    def tidy(self) -> None:
        while (decision := Rules(self.state, self.floor).tidy(FORGET_AFTER, self.now)) is not None:
            self._step(decision)

    def _step(self, decision: Any) -> Any:
        changes = numbered(self.state, self.floor, decision.changes)
        self.loop.run_until_complete(self.store.write(changes))
        self.state.commit(changes, self.now)
        history = self.state.history
        self.follower.take(*reversed(history.read(self.follower.revision, 1 << 20)))  # type: ignore[arg-type]
        answer = decision.answer()
        return answer.to_json() if isinstance(answer, Answer) else answer

    def forget(self) -> None:
        """The model of `tidy`: what lapsed is withdrawn, what was superseded long ago is forgotten."""
        for key in [key for key, item in self.subscribers.items() if not item.lease.live]:
            del self.subscribers[key]
        for key, item in list(self.publishers.items()):
            long_ago = not item.lease.live and self.now - item.lease.expires >= FORGET_AFTER
            if long_ago and not isinstance(self.judge(key, item.token), tuple):
                del self.publishers[key]

    def leases(self) -> list[Leased]:
        publishers, subscribers = self.publishers.values(), self.subscribers.values()
        return [item.lease for item in publishers] + [item.lease for item in subscribers]

    # --- streams ------------------------------------------------------------------------------------------------------

    @rule(name=NAMES, writers=st.integers(1, 2))
    def apply(self, name: str, writers: int) -> None:
        uid = f"u{len(self.uids)}"
        entry, created = self.do(lambda rules: streams.apply(rules, manifest(name, writers), uid, "now"))
        assert created == (name not in self.streams)
        if created:
            self.uids.append(uid)
        stream = self.streams.setdefault(name, ModelStream(uid, writers))
        if stream.writers != writers:
            stream.writers, stream.generation = writers, stream.generation + 1
        assert (entry.record.uid, entry.record.generation) == (stream.uid, stream.generation)

    @rule(name=NAMES)
    def apply_what_cannot_change(self, name: str) -> None:
        if name in self.streams:
            assert self.do(lambda rules: streams.apply(rules, manifest(name, segments=3), "u", "now")) is ImmutableField

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        answer = self.do(lambda rules: streams.delete(rules, called(name)))
        assert answer is (None if self.streams.pop(name, None) else StreamNotFound)
        self.subscribers = {key: item for key, item in self.subscribers.items() if item.stream != name}
        self.forget()
        assert self.do(lambda rules: streams.delete(rules, called("$catalog"))) is ReservedName

    @rule(name=NAMES, writer=WRITERS, late=st.none() | st.integers(0, 1))
    def session(self, name: str, writer: str, late: int | None) -> None:
        """`late`: how many numbers ago the one was given that it is to follow; None for after any."""
        stream = self.streams.get(name)
        before = None if stream is None else stream.sessions.get(writer)
        after = None if late is None else (before or 0) - late
        query = {} if after is None else {"after": after}
        call = Call(None, {"namespace": "demo", "name": name, "writer": writer}, query, "now", "", 0)
        answer = self.do(lambda rules: sessions.open_session(rules, call))
        if stream is None:
            assert answer is StreamNotFound
        elif stream.complete:
            assert answer is StreamComplete
        elif after is not None and after != before:
            assert answer is WriterFenced
        else:
            first = writer not in stream.sessions
            stream.sessions[writer] = max(stream.sessions.get(writer, 0) + 1, self.floor)
            stream.returned |= set() if first else {writer}
            stream.opened[writer] = self.now
            stream.released.pop(writer, None)
            number = stream.sessions[writer]
            assert answer == {"session": number, "uid": stream.uid, "first": first, "before": before}

    @rule(name=NAMES, writer=WRITERS)
    def release(self, name: str, writer: str) -> None:
        call = Call(None, {"namespace": "demo", "name": name, "writer": writer}, {}, "now", "", 0)
        answer = self.do(lambda rules: sessions.release(rules, call))
        stream = self.streams.get(name)
        if stream is None:
            assert answer is StreamNotFound
        elif writer not in stream.sessions:
            assert answer is WriterNotFound
        elif writer in stream.released or self.waits(stream, writer):
            stream.released[writer] = stream.sessions[writer]
            assert answer == {"writer": writer, "session": stream.sessions[writer]}
        else:
            assert answer is WriterNotLost

    def waits(self, stream: ModelStream, writer: str) -> bool:
        """Whether a segment was last reported, by a registration that is known, to wait for the lost writer."""
        known = {publisher.token for publisher in self.publishers.values()}
        return any(
            segment.lost is not None
            and segment.lost[0] == segment.token in known
            and segment.lost[1] >= stream.opened[writer]
            and segment.lost[2] == writer
            for segment in stream.segments.values()
        )

    # --- publishers ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.uids)
    @rule(name=NAMES, publisher=PUBLISHER_IDS, taken=st.sampled_from([{*SEGMENTS}, {"0"}, {"1"}]), which=WHICH)
    def register(self, name: str, publisher: str, taken: set[str], which: int) -> None:
        stream = self.streams.get(name)
        uid = stream.uid if which and stream else self.uids[which % len(self.uids)]
        self.instances += 1
        asked = Register(publisher, f"i{self.instances}", f"demo/{name}", uid, sorted(taken), Addresses("", "", ""))
        answer = self.do(lambda rules: publishers.register(rules, Call(asked, {}, {}, "now", "", 0)))
        if stream is None:
            assert answer is StreamNotFound
        elif stream.uid != uid:
            assert answer is StreamGone
        else:
            self.registered(publisher, name, stream, answer)
            revision = self.state.revision
            again = Call(asked, {}, {}, "later", "", 0)  # its answer was lost
            assert self.do(lambda rules: publishers.register(rules, again)) == answer
            assert self.state.revision == revision

    def registered(self, publisher: str, name: str, stream: ModelStream, answer: Any) -> None:
        self.token = max(self.token + 1, self.floor)
        assert (answer["token"], answer["ttl"]) == (self.token, TTL)
        mine = {}
        for granted in answer["segments"]:
            segment = stream.segments[granted["id"]]
            segment.incarnation, segment.token = max(segment.incarnation + 1, self.floor), self.token
            segment.number = segment.record = -1
            mine[granted["id"]] = segment.incarnation
            assert granted["incarnation"] == segment.incarnation
            assert granted["lower"] == (None if segment.lower is None else [segment.lower])
            assert (granted["horizon"], granted["marks"]) == (segment.horizon, list(segment.marks))
            assert granted["writers"] == list(segment.writers)
            assert (granted["finishing"], granted["complete"]) == (segment.finishing, stream.complete)
        assert answer["sessions"] == {key: stream.sessions[key] for key in stream.returned}
        self.publishers[publisher] = ModelPublisher(self.token, name, stream.uid, mine, Leased(self.now + TTL))
        self.forget()

    def judge(self, publisher: str, token: int) -> type[EpochalError] | tuple[ModelPublisher, ModelStream]:
        known = self.publishers.get(publisher)
        if known is None:
            return UnknownPublisher
        if known.token != token:
            return UnknownPublisher if token > known.token else Superseded
        stream = self.streams.get(known.stream)
        if stream is None or stream.uid != known.uid:
            return StreamGone
        if any(stream.segments[segment].token != token for segment in known.segments):
            return Superseded
        return known, stream

    def released(self, owner: ModelPublisher, stream: ModelStream, *lost: str) -> dict[str, int]:
        """What an answer tells a publisher: those that its segments count, or are `lost` by its report."""
        counted = {*lost, *(writer for key in owner.segments for writer in stream.segments[key].writers)}
        return {writer: session for writer, session in stream.released.items() if writer in counted}

    @rule(
        publisher=PUBLISHER_IDS,
        segment=st.sampled_from(SEGMENTS),
        back=WHICH,
        lower=st.integers(0, 9),
        writers=st.none() | st.sets(WRITERS),
    )
    def renew(self, publisher: str, segment: str, back: int, lower: int, writers: set[str] | None) -> None:
        known = self.publishers.get(publisher)
        token = (known.token if known else 1) - (back == 2) + (back == 3)
        incarnation = (known.segments.get(segment, 1) if known else 1) - (back == 1)
        report = {segment: SegmentReport(incarnation, [lower], None if writers is None else [*writers])}
        answer = self.renewed(publisher, token, report)
        match self.judge(publisher, token):
            case (owner, stream):
                if owner.segments.get(segment) != incarnation:
                    assert answer is Superseded
                else:
                    own = stream.segments[segment]
                    own.lower, own.horizon = lower, None
                    own.writers = own.writers if writers is None else tuple(sorted(writers))
                    owner.lease = Leased(self.now + TTL)
                    assert answer == {
                        "ttl": TTL,
                        "complete": stream.complete,
                        "recorded": {segment: own.record},
                        "released": self.released(owner, stream),
                    }
            case error:
                assert answer is error

    @rule(
        publisher=PUBLISHER_IDS,
        segment=st.sampled_from(SEGMENTS),
        up=st.integers(-1, 2),
        lower=st.none() | st.integers(0, 9),
        horizon=st.none() | st.lists(st.integers(0, 9), max_size=2),
        final=st.booleans(),
        marks=st.sets(st.sampled_from(["finished", "enough", "opened:w1"])),
    )
    def record(
        self,
        publisher: str,
        segment: str,
        up: int,
        lower: int | None,
        horizon: list[int] | None,
        final: bool,
        marks: set[str],
    ) -> None:
        """A numbered report: new, sent again, or overtaken by a later one."""
        judged = self.judge(publisher, self.publishers[publisher].token) if publisher in self.publishers else None
        if not isinstance(judged, tuple) or segment not in judged[0].segments:
            return
        owner, stream = judged
        own, before = stream.segments[segment], len(self.follower.frames)
        number = max(own.record + up, 0)
        reported = None if lower is None else [lower]
        report = SegmentReport(
            owner.segments[segment], reported, number=number, horizon=horizon, final=final, marks=[*marks]
        )
        answer = self.renewed(publisher, owner.token, {segment: report})
        reached = own.lower if lower is None else lower
        lost = [
            time for time in own.horizon or () if (reached is None or reached <= time) and time > max(horizon or [-1])
        ]
        if horizon is None or (number > own.record and lost and not final):
            assert answer is InvalidRequest
            return
        seen = number > own.record and reached != own.lower
        if number > own.record:
            own.lower, own.horizon, own.record, own.marks = reached, sorted(horizon)[-1:], number, tuple(marks)
        came_back = not owner.lease.live
        owner.lease = Leased(self.now + TTL)
        recorded = {segment: own.record}
        released = self.released(owner, stream)
        assert answer == {"ttl": TTL, "complete": stream.complete, "recorded": recorded, "released": released}
        assert len(self.follower.frames) == before + seen + came_back

    @rule(publisher=PUBLISHER_IDS, segment=st.sampled_from(SEGMENTS), writer=st.sampled_from(["w1", "w2", ""]))
    def wait_for(self, publisher: str, segment: str, writer: str) -> None:
        """A report that the segment waits for a lost writer, or for none."""
        judged = self.judge(publisher, self.publishers[publisher].token) if publisher in self.publishers else None
        if not isinstance(judged, tuple) or segment not in judged[0].segments:
            return
        owner, stream = judged
        holder = ReportedHolder(3, "lost", writer, 1.0, 2.0)
        report = SegmentReport(owner.segments[segment], counters={"events": 1}, holders=[holder] if writer else [])
        answer = self.renewed(publisher, owner.token, {segment: report})
        stream.segments[segment].lost = owner.token, self.now, writer
        owner.lease = Leased(self.now + TTL)
        assert answer["released"] == self.released(owner, stream, writer)

    @rule(publisher=PUBLISHER_IDS, segment=st.sampled_from(SEGMENTS), number=st.integers(0, 9), finishing=st.booleans())
    def mark(self, publisher: str, segment: str, number: int, finishing: bool) -> None:
        self.finish(publisher, segment, number, finishing)

    @rule(publisher=PUBLISHER_IDS)
    def mark_all(self, publisher: str) -> None:
        for segment in SEGMENTS:
            self.finish(publisher, segment, 6, True)

    def finish(self, publisher: str, segment: str, number: int, finishing: bool) -> None:
        known = self.publishers.get(publisher)
        if known is None or known.stream not in self.streams:
            return
        if segment not in known.segments:
            [segment] = known.segments
        mark = Finishing(publisher, known.token, known.segments[segment], number, finishing)
        path = {"namespace": "demo", "name": known.stream, "segment": segment}
        answer = self.do(lambda rules: publishers.finish(rules, Call(mark, path, {}, "now", "", 0)))
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

    @rule(publisher=PUBLISHER_IDS, wrong=st.integers(-1, 1))
    def deregister(self, publisher: str, wrong: int) -> None:
        known = self.publishers.get(publisher)
        token = (known.token if known else 1) + wrong
        call = Call(None, {"publisher": publisher}, {"token": token}, "now", "", 0)
        answer = self.do(lambda rules: publishers.deregister(rules, call))
        if known is None:
            assert answer is UnknownPublisher
        elif wrong:
            assert answer is (UnknownPublisher if wrong > 0 else Superseded)
        else:
            assert answer is None
            del self.publishers[publisher]

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.uids)
    @rule(name=NAMES, which=WHICH)
    def subscribe(self, name: str, which: int) -> None:
        stream = self.streams.get(name)
        uid = stream.uid if which and stream else self.uids[which % len(self.uids)]
        key, token = f"s{len(self.ids)}", 100 + len(self.ids)
        path = {"namespace": "demo", "name": name}
        call = Call(Subscribe("reader", uid), path, {}, "now", key, token)
        answer = self.do(lambda rules: subscriptions.subscribe(rules, call))
        if stream is None:
            assert answer is StreamNotFound
        elif stream.uid != uid:
            assert answer is StreamGone
        elif len(self.subscribers) == MOST:
            assert answer is Overloaded
        else:
            self.ids.append(key)
            assert answer == {"id": key, "token": token, "ttl": SUBSCRIPTION_TTL}
            self.subscribers[key] = ModelSubscription(token, name, Leased(self.now + SUBSCRIPTION_TTL))

    def owned(self, which: int, wrong: bool) -> tuple[str, int, type[EpochalError] | ModelSubscription]:
        key = self.ids[which % len(self.ids)]
        known = self.subscribers.get(key)
        if known is None:
            return key, 0, UnknownSubscription
        return key, known.token + wrong, NotOwner if wrong else known

    @precondition(lambda self: self.ids)
    @rule(which=WHICH, wrong=st.booleans(), lower=st.integers(0, 9))
    def renew_subscription(self, which: int, wrong: bool, lower: int) -> None:
        key, token, known = self.owned(which, wrong)
        call = Call(RenewSubscription(token, [lower]), {"subscription": key}, {}, "now", "", 0)
        answer = self.do(lambda rules: subscriptions.renew(rules, call))
        if isinstance(known, ModelSubscription):
            known.lease, known.lower = Leased(self.now + SUBSCRIPTION_TTL), lower
            assert answer == {"ttl": SUBSCRIPTION_TTL}
        else:
            assert answer is known

    @precondition(lambda self: self.ids)
    @rule(which=WHICH, wrong=st.booleans())
    def unsubscribe(self, which: int, wrong: bool) -> None:
        key, token, known = self.owned(which, wrong)
        call = Call(None, {"subscription": key}, {"token": token}, "now", "", 0)
        answer = self.do(lambda rules: subscriptions.withdraw(rules, call))
        if isinstance(known, ModelSubscription):
            del self.subscribers[key]
            assert answer is None
        else:
            assert answer is known

    # --- time, restarts, watchers -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, TTL - 1, TTL, SUBSCRIPTION_TTL, FORGET_AFTER]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.state.sweep(self.now, stall=1e9)
        for lease in self.leases():
            lease.live = lease.live and lease.expires > self.now
        self.forget()
        self.tidy()

    @rule()
    def stall(self) -> None:
        self.now += 100.0
        self.state.sweep(self.now, stall=50.0)
        for lease in self.leases():
            lease.expires += 100.0
        self.tidy()

    @rule()
    def restart(self) -> None:
        old, shown = self.state.history, self.shown()
        self.loop.run_until_complete(self.store.close())
        self.open()
        new = self.state.history
        assert (new.floor, new.newest, len(new)) == (old.floor, old.newest, len(old))
        assert new.read(new.floor, 1 << 20) == old.read(old.floor, 1 << 20)
        assert [(item["uid"], item["segments"]) for item in self.shown()] == [
            (item["uid"], item["segments"]) for item in shown
        ]
        for item in self.subscribers.values():
            item.lease, item.lower = Leased(self.now + SUBSCRIPTION_TTL, verified=False), None
        for owner in self.publishers.values():
            owner.lease = Leased(self.now + TTL, verified=False)
        for segment in (segment for stream in self.streams.values() for segment in stream.segments.values()):
            segment.lost = None
        self.tidy()

    def shown(self) -> list[dict[str, Any]]:
        """All streams, without their publishers, whose leases are new after a restart, and what these only report."""
        found = [streams.view(self.state, entry, self.now) for entry in self.state[STREAMS]]
        for segment in (segment for item in found for segment in item["segments"]):
            for name in ("publisher", "reported", "counters", "holders", "below"):
                del segment[name]
        return found

    @rule(floor=st.integers(0, 200))
    def turn_the_wall_clock(self, floor: int) -> None:
        """Ahead or back: what is given out afterwards is above all before, and not below it."""
        self.floor = floor

    @rule(back=st.integers(0, KEPT + 8), beside=st.integers(0, 2))
    def resume(self, back: int, beside: int) -> None:
        history = self.state.history
        known = [0, *sorted(self.follower.frames)]
        since = known[max(-1 - back, -len(known))] + beside
        if since < history.floor or since not in known:
            with pytest.raises(HistoryTruncated if since < history.floor else RevisionAhead):
                history.check(since)
            return
        history.check(since)
        data, _ = history.read(since, 1 << 20)
        expected = [self.follower.frames[at] for at in sorted(self.follower.frames) if at > since]
        assert data.split(b"\n\n")[:-1] == expected

    # --- what must always hold ----------------------------------------------------------------------------------------

    @invariant()
    def streams_are_as_in_the_model(self) -> None:
        shown = {entry.record.name: entry for entry in self.state[STREAMS]}
        assert shown.keys() == self.streams.keys()
        assert self.state.last_token == self.token
        for name, stream in self.streams.items():
            entry = shown[name]
            assert (entry.record.uid, entry.complete) == (stream.uid, stream.complete)
            numbers = {session.writer: session.number for session in self.state[SESSIONS].of(stream.uid)}
            assert numbers == stream.sessions
            for segment in entry.segments.values():
                model = stream.segments[segment.id]
                owner = next((key for key, item in self.publishers.items() if item.token == model.token), None)
                found = self.state.publisher_of(segment)
                live = owner is not None and self.publishers[owner].lease.live
                assert (found.publisher if found else None) == (owner if live else None)
                assert (segment.incarnation, segment.finishing) == (model.incarnation, model.finishing)
                assert segment.lower == (None if model.lower is None else [model.lower])
                assert (segment.horizon, segment.record_number) == (model.horizon, model.record)
                assert (segment.marks, segment.writers) == (model.marks, model.writers)

    @invariant()
    def leases_are_as_in_the_model(self) -> None:
        shown = {item.publisher: publishers.view(self.state, item) for item in self.state[PUBLISHERS]}
        assert {key: (item["live"], item["verified"]) for key, item in shown.items()} == {
            key: (item.lease.live, item.lease.verified) for key, item in self.publishers.items()
        }
        subscribers = self.state[SUBSCRIPTIONS]
        assert set(subscribers.keys) == self.subscribers.keys()
        for key, item in self.subscribers.items():
            record = subscribers.get(key)
            assert record is not None
            reader = subscriptions.view(self.state, record).to_json()
            lower = None if item.lower is None else [item.lower]
            assert (reader["stream"], reader["verified"]) == (f"demo/{item.stream}", item.lease.verified)
            assert reader["lower"] == lower

    @invariant()
    def the_follower_sees_what_there_is(self) -> None:
        of = self.follower.of
        assert self.follower.revision == self.state.history.newest == self.state.revision
        assert {
            name: (item["uid"], item["generation"], item["completed"] is not None)
            for name, item in of("stream").items()
        } == {f"demo/{name}": (item.uid, item.generation, item.complete) for name, item in self.streams.items()}
        assert {
            name: (item["token"], item["incarnation"], item["lower"], item["finishing"])
            for name, item in of("segment").items()
        } == {
            f"demo/{name}/{key}": (
                item.token,
                item.incarnation,
                None if item.lower is None else [item.lower],
                item.finishing,
            )
            for name, stream in self.streams.items()
            for key, item in stream.segments.items()
        }
        assert {name: (item["number"], item["released"]) for name, item in of("session").items()} == {
            f"demo/{name}/{writer}": (number, stream.released.get(writer))
            for name, stream in self.streams.items()
            for writer, number in stream.sessions.items()
        }
        assert {name: (item["token"], item["live"]) for name, item in of("publisher").items()} == {
            name: (item.token, item.lease.live) for name, item in self.publishers.items()
        }
        assert {name: item["stream"] for name, item in of("subscription").items()} == {
            name: f"demo/{item.stream}" for name, item in self.subscribers.items()
        }
        assert "token" not in str(of("subscription"))
        assert "horizon" not in str(of("segment"))


class LongMachine(CatalogMachine):
    """The same, for longer."""


_RULES = pytest.mark.rule("S26", "S29", "S30", "S31", "E6", "E7", "E11", "E12", "E46")
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
TestCatalogMachine = _RULES(CatalogMachine.TestCase)
TestCatalogMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=_SLOW
)
TestLongMachine = pytest.mark.long(_RULES(LongMachine.TestCase))
TestLongMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=_SLOW
)
