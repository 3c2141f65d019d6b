"""A publisher process: the machines of one segment, with three sockets; it stalls, dies and comes back.

The simulated counterpart of the publisher service.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from tests.simulation.catalog import Catalog, Grant
from tests.simulation.disk import Checkpoint, Disk, events_of
from tests.simulation.gathering import Gathering
from tests.simulation.links import Connection, Socket
from tests.simulation.liveness import Liveness
from tests.simulation.oracle import Oracle, Times, Violation
from tests.simulation.reporting import RETRY, Reporting
from tests.simulation.scenario import Scenario
from tests.simulation.strangers import Stranger
from tests.simulation.world import Act, World

from epochal.errors import HistoryTruncated, Unavailable, WriterLost
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.committed_view import CommittedView
from epochal.protocol.publisher.effects import (
    AskRecord,
    FindBeginning,
    FindState,
    Log,
    Private,
    PublisherEffect,
    Push,
    ReadLog,
    Reply,
    ReportFinishing,
    SendAnswers,
)
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import Frames

TICK = 0.2
SYNC = 0.1
"""How often a tick syncs the disk, under the policy `interval`."""
STALL = 1.0
GATHERING = 2.0
"""Seconds for what an incarnation has to have recorded once it has heard its writers, or waits for them no longer."""


class Incarnation:
    """One life of a node, to which the catalog may answer late: that must not reach the next one."""

    def __init__(self, node: "Node", publisher: SegmentPublisher) -> None:
        self._node, self._publisher = node, publisher

    @property
    def alive(self) -> bool:
        """Whether this life goes on."""
        return self._node.up and self._node.publisher is self._publisher

    def when_running(self, act: Act) -> None:
        """Do something once the process runs, in this life; then carry out what comes of it."""
        if self.alive:
            self._node.when_running(act)


class Node:
    """The publisher of one segment, through all its incarnations."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        catalog: Catalog,
        oracle: Oracle,
        segment: str,
        make_disk: Callable[[World, str], Disk],
    ) -> None:
        self.world, self.scenario, self.catalog, self.oracle = world, scenario, catalog, oracle
        self.segment = segment
        self.up = False
        self.draining = False
        """Whether the process stops in order: it takes nothing more of writers."""
        self._connections: dict[bytes, tuple[Socket, Connection]] = {}
        self._owners: dict[bytes, tuple[str, int]] = {}
        """Of every connection so far: what a publisher answers counts, also where nobody is left to hear it."""
        self._names = 0
        self._inbox: list[Callable[[], object]] = []
        self._stalled_since = self._stalled_until = 0.0
        self._fair_since = 0.0
        self._gathering: Gathering | None = None
        """Of an incarnation that does not know yet what may be lost of the last one (E11)."""
        self._wrong_until = 0.0
        """Until then its address leads to `_stranger`."""
        self._stranger: Stranger | None = None
        self._disk = make_disk(world, segment) if scenario.durable else None
        if self._disk is not None:
            self._disk.relaxed = scenario.interval
        self._checkpoint: Checkpoint | None = None
        self._committing: list[PublisherEffect] | None = None
        """What waits for the disk; nothing else is taken meanwhile, so that what comes is committed together."""
        self.start()
        world.after(world.between(0, TICK), self._ticks)

    # ---- lives ----

    def start(self) -> None:
        """Begin the next incarnation, as the catalog says (E11)."""
        grant, before = self.catalog.register(self.segment), self._gathering
        fresh = grant.lower is not None and before is None and not self.world.calm
        fresh = fresh and self.world.chance(self.scenario.unknown_horizons)
        if fresh:
            grant = self._forget(grant)
        scenario, now = self.scenario, self.world.now
        settings = PublisherSettings(
            scenario.time_shape,
            min_writers=scenario.min_writers,
            writer_timeout=scenario.writer_timeout,
            stall=STALL,
            window=400,
            retention_bytes=scenario.retention_bytes,
            retention_age=scenario.retention_age,
            durable=scenario.durable,
        )
        restored = None if self._disk is None else self._disk.restore(grant.incarnation)
        # A life that ended while it gathered had not begun its log yet.
        fresh = fresh or (before is not None and self._disk is not None and restored is None)
        self.publisher = SegmentPublisher(
            "uid", self.segment, settings, incarnation=grant.incarnation, now=now, lower=grant.lower,
            horizon=grant.horizon, known_writers=grant.writers, sessions=grant.sessions, complete=grant.complete,
            finishing=grant.finishing, marks=grant.marks, restored=restored,
            incarnations=[] if self._disk is None else self._disk.incarnations,
        )  # fmt: skip
        self._gathering = None
        if self.publisher.gathering:
            where = f"segment {self.segment}, incarnation {grant.incarnation}"
            self._gathering = Gathering(where, grant.writers, scenario.writer_timeout)
        first = [] if self._disk is None or self._gathering else self._disk.begin(self.publisher)
        self.channels = Channels(lambda: self.world.random.randbytes(8))
        state = restored.state if restored is not None else self.publisher.state()
        self._told = None if self._disk is None else CommittedView(self.publisher, state.seq)
        self.server = SegmentServer(self._told or self.publisher, self.channels, ServingSettings(), now)
        self.log = self.oracle.incarnation(
            self.segment, grant.incarnation, state.lower, state.seq, below=state.below, now=now, fresh=fresh,
            kept_bytes=None if self._disk is None else self._disk.keeps,
            kept_seconds=None if self._disk is None else inf,
        )  # fmt: skip
        if before is not None and self._gathering is None and not grant.complete:  # it has recorded what may be lost
            before.died()
            self.oracle.gathered(self.log, self.log.start, state.below, before.heard)
        if restored is None:
            self.log.closed_before = _closed(grant)
        self.liveness = Liveness(self.segment, records=not scenario.durable)
        self._reporting = Reporting(
            self.world, scenario, self.catalog, self.publisher, self.liveness, Incarnation(self, self.publisher),
            lambda: self.log.lower,
        )  # fmt: skip
        self._ticked = now
        """What the publisher's clock says."""
        if self._told is not None and first:
            self._logged(first)
            self._told.seq = self.publisher.seq
        self._leaves: dict[tuple[bytes, int], tuple[str, int]] = {}
        """(connection, operation) -> the session that asks to close or to finish."""
        self._heard: dict[bytes, float] = {}
        self._longest_silence: dict[bytes, float] = {}
        self._fair_since = now
        self.up, self.draining = True, False
        self._carry_out(first)
        self._reporting.begin()

    def _forget(self, grant: Grant) -> Grant:
        """The log is lost with its volume; or the last publisher was of a version that recorded no horizon."""
        self.world.note(f"segment {self.segment}: nothing is known of the last incarnation")
        self.world.history.lost(self.segment, grant.incarnation - 1)
        self.world.history.forgot(self.segment)
        if self._disk is not None:
            self.world.count("volumes lost")
            self._disk.lose()
            return grant
        self.catalog.forget_horizon(self.segment)
        return replace(grant, horizon=None)

    def _gathered(self) -> None:
        """It begins now, after a life of which nothing was recorded."""
        gathering, self._gathering = self._gathering, None
        assert gathering is not None
        gathering.begins(self.world.now - self._fair_since)
        self.world.count("gathered")
        self.world.note(f"segment {self.segment}: has heard {sorted(gathering.heard)}")
        # It may have gone on by now, and its history may have dropped its beginning. Only what was complete before it
        # began has no record of that, and logs nothing.
        began = self.publisher.history.states()[0]
        unrecorded = self.publisher.complete and self.publisher.seq == m.NOTHING_YET
        below = self._reporting.horizon if self._disk is None and not unrecorded else began.below
        start = began.lower if unrecorded else self.log.start
        self.oracle.gathered(self.log, start, below, gathering.heard)
        if self._disk is not None:
            self._carry_out(self._disk.begin(self.publisher))

    def crash(self, back_after: float, *, machine: bool = True) -> None:
        """Die, or the machine does: memory and connections are gone; a new incarnation starts after a while."""
        self.up = False
        self.world.count("crashes")
        if self._committing is not None and self.world.chance(0.5):
            self._commit(self._committing)  # the disk had it, and nobody knew
            for effect in self._committing:
                if isinstance(effect, Reply) and isinstance(effect.message, m.Opened):
                    self.oracle.counted(self.segment, self._owners[effect.peer][0])
        if self._disk is not None and machine:
            self._disk.crash()
        self.world.history.fault("kill", self.segment)
        if self._disk is None or (machine and self.scenario.interval):
            self.world.history.lost(self.segment, self.publisher.incarnation)
        self._end(back_after)
        self.world.note(f"segment {self.segment}: crash (machine={machine}), back after {back_after:.2f} s")

    def _end(self, back_after: float) -> None:
        self.up, self._committing = False, None
        self._inbox.clear()
        self._stalled_until = 0.0
        connections, self._connections = self._connections, {}
        for _, connection in connections.values():
            connection.on_left = lambda: None
            connection.sever(0.5)
        self.world.after(back_after, self._restart)

    # ---- the end of a process in order: `drain`, once `settled` the `last_record`, then `stop` ----

    def drain(self) -> None:
        """Take nothing more of writers, and abort what can never complete (fault 60)."""
        self.draining = self._reporting.draining = True
        self.world.history.fault("stop", self.segment)
        self.publisher.drain()
        self._pump()

    @property
    def settled(self) -> bool:
        """Whether the disk has what was decided."""
        return self._committing is None and not self.stalled

    @property
    def forgets(self) -> bool:
        """Whether its history may be dropped, for its age or its size."""
        return self.scenario.forgets if self._disk is None else self._disk.keeps < inf

    @property
    def stalled(self) -> bool:
        """Whether the loop does not run."""
        return bool(self._stalled_until)

    @property
    def serves(self) -> bool:
        """Whether it answers joins: it may wait for the writers of the life before (E11)."""
        return self.up and not self.stalled and self._gathering is None

    def last_record(self) -> Callable[[], object]:
        """What the next incarnation is to begin with, made now; to be called as it gets to the catalog."""
        record, incarnation = self.publisher.record(final=True), self.publisher.incarnation
        if record is None:
            return lambda: None
        return partial(self.catalog.store, self.segment, incarnation, record)

    def stop(self, back_after: float) -> None:
        """The process ends."""
        self.world.count("stops")
        if self._disk is not None:
            self._disk.close()
        else:
            self.world.history.lost(self.segment, self.publisher.incarnation)
        self._end(back_after)
        self.world.note(f"segment {self.segment}: stops in order, back after {back_after:.2f} s")

    def _restart(self) -> None:
        if self.catalog.away:
            self.world.after(RETRY, self._restart)
        elif not self.up:
            self.start()
            self.world.note(f"segment {self.segment}: incarnation {self.publisher.incarnation}")

    def stall(self, seconds: float) -> None:
        """The loop does not run for a while; what arrives waits."""
        self.world.count("stalls")
        self._longest_silence.update({peer: self._silence(peer) for peer in self._heard})
        self._stalled_since, self._stalled_until = self.world.now, self.world.now + seconds
        self.world.note(f"segment {self.segment}: stall of {seconds:.2f} s")
        self.world.after(seconds, self._unstall)

    def _unstall(self) -> None:
        if self._stalled_until and self.world.now >= self._stalled_until:
            self._stalled_until = 0.0
            if self.world.now - self._stalled_since > STALL:
                for peer, heard in self._heard.items():  # what was decided before the stall may be sent after it
                    silent = self._stalled_since - max(heard, self._fair_since)
                    self._longest_silence[peer] = max(self._longest_silence.get(peer, 0.0), silent)
                self._fair_since = self.world.now
            self.liveness.excused(self.world.now)
            inbox, self._inbox = self._inbox, []
            for act in inbox:
                act()

    # ---- connections ----

    def connect(self, socket: Socket, owner: tuple[str, int]) -> Connection | None:
        """Accept a connection of session `owner` (writer id, number); None while nobody does."""
        if self._stranger is not None and self.world.now < self._wrong_until:
            self.world.count("misled")
            return self._stranger.connect(socket, owner)
        if not self.up:
            return None
        self._names += 1
        name = f"{socket}-{self.publisher.incarnation}-{self._names}".encode()
        connection = Connection(self.world, name, owner, self.scenario.longest_delay)
        self._connections[name], self._owners[name] = (socket, connection), owner
        connection.on_server = lambda frames: self._when_running(lambda: self._arrived(socket, connection, frames))
        connection.on_left = lambda: self._when_running(lambda: self._left(connection))
        return connection

    def mislead(self, seconds: float) -> None:
        """For a while who connects to its address finds a publisher of another stream there (E48)."""
        self._stranger = Stranger(self.world, self.scenario, self.segment)
        self._wrong_until = self.world.now + seconds
        self.world.note(f"segment {self.segment}: its address is another stream's for {seconds:.2f} s")

    def connections(self) -> list[Connection]:
        """All that stand."""
        return [connection for _, connection in self._connections.values() if connection.up]

    def when_running(self, act: Act) -> None:
        """Do something once the process runs, and carry out what comes of it."""

        def acts() -> None:
            act()
            self._pump()

        self._when_running(acts)

    def _when_running(self, act: Act) -> None:
        if not self.up:
            return
        if self._stalled_until:
            self._inbox.append(act)
        else:
            act()

    def _left(self, connection: Connection) -> None:
        self._connections.pop(connection.name, None)
        self.liveness.answered(connection.name)
        for prefix in connection.prefixes:
            self._unsubscribed(prefix)

    def _arrived(self, socket: Socket, connection: Connection, frames: Frames) -> None:
        now = self.world.now
        if socket is Socket.EVENTS:
            self._subscription(connection, frames[0])
        else:
            for message in wire.decode(frames):
                if self.world.tracing and type(message) is not m.Alive:
                    self.world.note(f"segment {self.segment} <- {connection.name.decode()} {message}")
                if socket is Socket.REQUESTS:
                    self.server.receive(connection.name, message, now)
                elif self.draining:
                    self._decline(connection, message)
                else:
                    self._take_in(connection, message, now)
        self._pump()

    def _take_in(self, connection: Connection, message: m.Message, now: float) -> None:
        peer = connection.name
        if isinstance(message, m.Leave) and message.how is not m.Leaving.ABORT:
            self._leaves[peer, message.op] = connection.owner
            self.oracle.closing(self.log, *connection.owner, now)
        self._longest_silence[peer] = self._silence(peer)
        self._heard[peer] = now
        if isinstance(message, m.Open):
            self.liveness.asks(peer, now)
            if self._gathering is not None:
                self._gathering.asks(peer, connection.owner, message)
        self.publisher.receive(peer, message, now)

    def _decline(self, connection: Connection, message: m.Message) -> None:
        """Have a writer look the segment up again: this process stops."""
        error = Unavailable("the publisher stops; look the segment up again")
        answer: m.Message = m.Lost(self.segment, error.code, str(error))
        if isinstance(message, m.Open):
            answer = m.Refused(message.op, error.code, str(error))
        self._to(connection.name, wire.encode(answer))

    def _subscription(self, connection: Connection, notice: bytes) -> None:
        comes, prefix = notice[0] == 1, notice[1:]
        if comes:
            connection.prefixes[prefix] = None
        else:
            connection.prefixes.pop(prefix, None)
        if not comes:
            self._unsubscribed(prefix)
        elif prefix[:1] == b"P":
            self.server.subscribed(prefix[1:], self.world.now)
        else:
            self.channels.hears(prefix[1:], True)

    def _unsubscribed(self, prefix: bytes) -> None:
        """As XPUB reports it: the end of a prefix only once nobody has it any more."""
        if any(prefix in connection.prefixes for _, connection in self._connections.values()):
            return
        if prefix[:1] == b"P":
            self.server.unsubscribed(prefix[1:])
        else:
            self.channels.hears(prefix[1:], False)

    # ---- time ----

    def _ticks(self) -> None:
        self.world.after(TICK, self._ticks)
        if self.up and not self._stalled_until:
            now = self._ticked = self.world.now
            self.publisher.tick(now)
            if self._gathering is not None:
                self._gathering.tick(now - self._fair_since)
            self.server.tick(now)
            if self._disk is not None and self._committing is None and self.world.chance(SYNC):
                self._disk.sync()
            self._pump()
            self._reporting.tick()
            self._judge_liveness(now)

    def _judge_liveness(self, now: float) -> None:
        waits = self._gathering is not None and now - self._fair_since < self.scenario.writer_timeout + GATHERING
        if self.draining or waits:
            self.liveness.excused(now)
        elif self.catalog.away:
            self.liveness.opens_excused(now)
        self.liveness.judge(self.log.lower, now)

    # ---- effects ----

    def _pump(self) -> None:
        if self._gathering is not None and not self.publisher.gathering:
            self._gathered()
        if self._told is not None:
            self._carry_out(self._told.take())  # readers do not wait for the disk
        if self._committing is not None:
            return
        effects = self.publisher.take()
        if effects and isinstance(effects[-1], Log):
            self._committing = effects
            self._checkpoint = self._disk.next_checkpoint(self.publisher) if self._disk is not None else None
            incarnation, longest = self.publisher.incarnation, self.scenario.longest_sync
            self.world.after(
                self.world.between(0, longest if self._must_sync(effects[-1]) else longest / 10),
                lambda: self._when_running(lambda: self._committed(incarnation)),
            )
        else:
            if self._disk is None and self._gathering is None:
                self._logged(effects)
            self._carry_out(effects)

    def _must_sync(self, entry: Log) -> bool:
        """E10: whether the disk must have it before it is acknowledged or pushed."""
        return entry.secure or not self.scenario.interval

    def _committed(self, incarnation: int) -> None:
        effects = self._committing
        if effects is None or incarnation != self.publisher.incarnation:
            return
        self._commit(effects)
        self._committing = None
        if self._told is not None and (events := events_of(effects)):
            self._told.seq = events[-1].seq
        self._carry_out(effects)
        self._pump()

    def _commit(self, effects: list[PublisherEffect]) -> None:
        entry = effects[-1]
        assert isinstance(entry, Log)
        assert self._disk is not None
        self._disk.write(events_of(effects), entry.notes, self._checkpoint, sync=self._must_sync(entry))
        self._logged(effects)

    def _carry_out(self, effects: list[PublisherEffect]) -> None:
        ask = False
        for effect in effects:
            match effect:
                case Push(message):
                    self.channels.push(message)
                case Reply():
                    self._reply(effect)
                case SendAnswers():
                    self._to(effect.peer, wire.encode(*effect.messages))
                case Private():
                    self._push()
                    private = self.channels.left(effect.message, effect.replaced)
                    frames = wire.encode(private, prefix=b"P" + effect.subscription)
                    self._publish(b"P" + effect.subscription, frames)
                case ReportFinishing():
                    self._reporting.finishing(effect)
                case AskRecord():
                    ask = True
                case FindState() | FindBeginning() | ReadLog():
                    self._read(effect)
        self._push()
        if ask:
            self._reporting.record()

    def _read(self, ask: FindState | FindBeginning | ReadLog) -> None:
        """Ask the disk, which takes a while."""
        self.world.count("read")
        disk, incarnation = self._disk, self.publisher.incarnation
        assert disk is not None

        def read() -> None:
            if incarnation != self.publisher.incarnation:
                return
            try:
                if isinstance(ask, FindState):
                    self.server.state_found(ask.peer, ask.request, disk.state_at(ask.seq))
                elif isinstance(ask, FindBeginning):
                    self.server.state_found(ask.peer, ask.request, disk.beginning(ask.wanted))
                else:
                    events = disk.since(ask.after, ask.max_events)
                    last, upto = events[-1].seq, m.NOTHING_YET
                    if ask.topics is not None:
                        events, upto = [each for each in events if _is_wanted(each, ask.topics)], last
                    self._to(ask.peer, wire.encode(m.Chunk(ask.request, len(events), False, upto), *events))
                    self.server.was_read(ask.peer, ask.request, last)
            except HistoryTruncated as error:
                self.server.not_read(ask.peer, ask.request, error)
            self._pump()

        self.world.after(self.world.between(0, self.scenario.longest_sync), lambda: self._when_running(read))

    def _logged(self, effects: list[PublisherEffect]) -> None:
        for event in events_of(effects):
            if self.world.tracing:
                self.world.note(f"segment {self.segment} log {event}")
            self.oracle.logged(self.log, event, self._ticked)

    def _push(self) -> None:
        for frames in self.channels.flush():
            self._publish(frames[0][: wire.CHANNEL_PREFIX], [frames])

    def _publish(self, prefix: bytes, messages: list[Frames]) -> None:
        if messages:
            for _, connection in self._connections.values():
                if prefix in connection.prefixes:
                    for frames in messages:
                        connection.push(frames, self.scenario.high_water)

    def _to(self, peer: bytes, messages: list[Frames]) -> None:
        entry = self._connections.get(peer)
        if entry is not None:
            for frames in messages:
                entry[1].to_client(frames)

    def _reply(self, reply: Reply) -> None:
        if self.world.tracing:
            self.world.note(f"segment {self.segment} -> {reply.peer.decode()} {reply.message}")
        message = reply.message
        if isinstance(message, m.Opened | m.Refused | m.Lost):
            self.liveness.answered(reply.peer)
        if self._gathering is not None:
            self._gathering.refused(reply.peer)
        if type(message) is m.Opened:
            self.oracle.opened(self.log, *self._owners[reply.peer])
        elif type(message) is m.Done and (owner := self._leaves.get((reply.peer, message.op))) is not None:
            self.oracle.closed(self.log, *owner, self.world.now)
        elif type(message) is m.Lost and message.code == WriterLost.code:
            silent = self._silence(reply.peer)
            if silent < self.scenario.writer_timeout - 1e-6:
                raise Violation(f"E8: segment {self.segment} gave a writer up after {silent:.3f} s of silence")
        self._to(reply.peer, wire.encode(message))

    def _silence(self, peer: bytes) -> float:
        """The longest silence of a writer so far, in seconds.

        What is heard while the disk is awaited, and a stall meanwhile, change nothing of what was decided before.
        """
        silent = self.world.now - max(self._heard.get(peer, 0.0), self._fair_since)
        return max(silent, self._longest_silence.get(peer, 0.0)) if self.scenario.durable else silent


def _closed(grant: Grant) -> Times | None:
    """What the last writer to close had held, by what is recorded of a life without a log (E3)."""
    texts = [mark.removeprefix("closed:") for mark in grant.marks if mark.startswith("closed:")]
    return frozenset(_time(json.loads(text)) for text in texts) or None


def _time(value: Any) -> Time:
    return tuple(map(_time, value)) if isinstance(value, list) else int(value)


def _is_wanted(event: m.Event, topics: TopicFilter) -> bool:
    return type(event) is not m.Data or topics.wants(event.topic)
