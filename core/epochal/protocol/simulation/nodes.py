"""A publisher process: the machines of one segment behind three sockets; it stalls, dies and comes back.

Apart from the network and the oracle because this is the simulated counterpart of the publisher service.
"""

from collections.abc import Callable
from enum import StrEnum

from epochal.errors import HistoryTruncated, WriterLost
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.effects import (
    Answer,
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
)
from epochal.protocol.history import State
from epochal.protocol.publishing import PublisherSettings, SegmentPublisher
from epochal.protocol.serving import SegmentServer, ServingSettings
from epochal.protocol.simulation.catalog import Catalog
from epochal.protocol.simulation.disk import Disk, events_of
from epochal.protocol.simulation.links import Connection, Frames
from epochal.protocol.simulation.oracle import Oracle, Violation
from epochal.protocol.simulation.scenario import Scenario
from epochal.protocol.simulation.world import World
from epochal.protocol.told import Told

TICK = 0.2
REPORT = 0.8
REPORT_TIMEOUT = 1.0
"""Seconds after which a report without an answer is made again; it may still get there."""
SYNC = 0.1
"""How often a tick syncs the disk, under the policy `interval`."""
STALL = 1.0


class Socket(StrEnum):
    """Which of a publisher's sockets a connection is made to."""

    EVENTS = "events"
    REQUESTS = "requests"
    INGEST = "ingest"


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
        self.crashes = self.stalls = 0
        self._connections: dict[bytes, tuple[Socket, Connection]] = {}
        self._names = 0
        self._inbox: list[Callable[[], object]] = []
        self._stalled_since = self._stalled_until = 0.0
        self._fair_since = 0.0
        self._disk = make_disk(world, segment) if scenario.durable else None
        if self._disk is not None:
            self._disk.relaxed = scenario.interval
        self._checkpoint: tuple[State, bytes] | None = None
        self._committing: list[PublisherEffect] | None = None
        """What waits for the disk; nothing else is taken meanwhile, so that what comes is committed together."""
        self.start()
        world.after(world.between(0, TICK), self._ticks)

    # ---- lives ----

    def start(self) -> None:
        """Begin the next incarnation, as the catalog says (E11)."""
        grant = self.catalog.register(self.segment)
        scenario, now = self.scenario, self.world.now
        settings = PublisherSettings(
            scenario.time_shape,
            min_writers=scenario.min_writers,
            writer_timeout=scenario.writer_timeout,
            stall=STALL,
            window=400,
            retention_bytes=scenario.retention_bytes,
            durable=scenario.durable,
        )
        restored = None if self._disk is None else self._disk.restore(grant.incarnation)
        self.publisher = SegmentPublisher(
            "uid", self.segment, settings, incarnation=grant.incarnation, now=now, lower=grant.lower,
            horizon=grant.horizon, known_writers=grant.writers, sessions=grant.sessions, complete=grant.complete,
            finishing=grant.finishing, marks=grant.marks, restored=restored,
            incarnations=[] if self._disk is None else self._disk.incarnations,
        )  # fmt: skip
        first = [] if self._disk is None else self._disk.begin(self.publisher)
        self.channel = self.world.random.randbytes(8)
        state = restored.state if restored is not None else self.publisher.state()
        self._told = None if self._disk is None else Told(self.publisher, state.seq)
        self.server = SegmentServer(self._told or self.publisher, self.channel, ServingSettings(), now)
        self.log = self.oracle.incarnation(
            self.segment, grant.incarnation, state.lower, state.seq, below=state.below, now=now
        )
        if self._told is not None and first:
            self._logged(first)
            self._told.seq = self.publisher.seq
        self._heard: dict[bytes, float] = {}
        self._longest_silence: dict[bytes, float] = {}
        self._fair_since = self._reported = now
        self._asked = 0
        """Reports under way to the catalog are numbered; of a publisher without a log one at a time."""
        self._under_way = 0
        self.up = True
        self._carry_out(first)

    def crash(self, back_after: float, *, machine: bool = True) -> None:
        """Die, or the machine does: memory and connections are gone; a new incarnation starts after a while."""
        self.up = False
        self.crashes += 1
        if self._committing is not None and self.world.chance(0.5):
            self._commit(self._committing)  # the disk had it, and nobody was told
            for effect in self._committing:
                entry = self._connections.get(effect.peer) if isinstance(effect, Reply) else None
                if entry is not None and isinstance(effect, Reply) and isinstance(effect.message, m.Opened):
                    self.oracle.counted(self.segment, entry[1].owner[0])
        self._committing = None
        if self._disk is not None and machine:
            self._disk.crash()
        self._inbox.clear()
        self._stalled_until = 0.0
        connections, self._connections = self._connections, {}
        for _, connection in connections.values():
            connection.on_left = lambda: None
            connection.sever(0.5)
        self.world.note(f"segment {self.segment}: crash (machine={machine}), back after {back_after:.2f} s")
        self.world.after(back_after, self._restart)

    def _restart(self) -> None:
        if self.catalog.away:
            self.world.after(0.3, self._restart)
        elif not self.up:
            self.start()
            self.world.note(f"segment {self.segment}: incarnation {self.publisher.incarnation}")

    def stall(self, seconds: float) -> None:
        """The loop does not run for a while; what arrives waits."""
        self.stalls += 1
        self._longest_silence.update({peer: self._silence(peer) for peer in self._heard})
        self._stalled_since, self._stalled_until = self.world.now, self.world.now + seconds
        self.world.note(f"segment {self.segment}: stall of {seconds:.2f} s")
        self.world.after(seconds, self._unstall)

    def _unstall(self) -> None:
        if self._stalled_until and self.world.now >= self._stalled_until:
            self._stalled_until = 0.0
            if self.world.now - self._stalled_since > STALL:
                for peer, heard in self._heard.items():  # what was decided before the stall may be told after it
                    silent = self._stalled_since - max(heard, self._fair_since)
                    self._longest_silence[peer] = max(self._longest_silence.get(peer, 0.0), silent)
                self._fair_since = self.world.now
            inbox, self._inbox = self._inbox, []
            for act in inbox:
                act()

    # ---- connections ----

    def connect(self, socket: Socket, owner: tuple[str, int]) -> Connection | None:
        """Accept a connection of session `owner` (writer id, number); None while the process is down."""
        if not self.up:
            return None
        self._names += 1
        name = f"{socket}-{self.publisher.incarnation}-{self._names}".encode()
        connection = Connection(self.world, name, owner, self.scenario.longest_delay)
        self._connections[name] = (socket, connection)
        connection.on_server = lambda frames: self._when_running(lambda: self._arrived(socket, connection, frames))
        connection.on_left = lambda: self._when_running(lambda: self._left(connection))
        return connection

    def connections(self) -> list[Connection]:
        """All that stand."""
        return [connection for _, connection in self._connections.values() if connection.up]

    def _when_running(self, act: Callable[[], object]) -> None:
        if not self.up:
            return
        if self._stalled_until:
            self._inbox.append(act)
        else:
            act()

    def _left(self, connection: Connection) -> None:
        self._connections.pop(connection.name, None)
        for prefix in connection.prefixes:
            if prefix[:1] == b"P":
                self.server.unsubscribed(prefix[1:])

    def _arrived(self, socket: Socket, connection: Connection, frames: Frames) -> None:
        now = self.world.now
        if socket is Socket.EVENTS:
            self._subscription(connection, frames[0])
        else:
            for message in wire.decode(frames):
                if self.world.tracing and type(message) is not m.Alive:
                    self.world.note(f"segment {self.segment} <- {connection.name.decode()} {message}")
                if socket is Socket.INGEST:
                    self._longest_silence[connection.name] = self._silence(connection.name)
                    self._heard[connection.name] = now
                    self.publisher.receive(connection.name, message, now)
                else:
                    self.server.receive(connection.name, message, now)
        self._pump()

    def _subscription(self, connection: Connection, notice: bytes) -> None:
        comes, prefix = notice[0] == 1, notice[1:]
        if comes:
            connection.prefixes[prefix] = None
        else:
            connection.prefixes.pop(prefix, None)
        if prefix[:1] == b"P":
            if comes:
                self.server.subscribed(prefix[1:], self.world.now)
            else:
                self.server.unsubscribed(prefix[1:])

    # ---- time ----

    def _ticks(self) -> None:
        self.world.after(TICK, self._ticks)
        if self.up and not self._stalled_until:
            now = self.world.now
            self.publisher.tick(now)
            self.server.tick(now)
            if self._disk is not None and self._committing is None and self.world.chance(SYNC):
                self._disk.sync()
            self._pump()
            if now - self._reported >= REPORT:
                self._report()

    def _report(self) -> None:
        publisher, self._reported = self.publisher, self.world.now
        if not self.scenario.durable:
            self._report_record()
            return
        if self.catalog.away:
            return
        lower = tuple(sorted(self.log.lower))
        if self.catalog.report(self.segment, publisher.incarnation, lower, tuple(publisher.writers)):
            publisher.completed()
            self._pump()

    def _report_record(self) -> None:
        """Have the catalog store a record, which may take long, or get there after the next one (E11)."""
        if self._under_way:
            return
        publisher, world, scenario = self.publisher, self.world, self.scenario
        record = publisher.record()
        assert record is not None
        self._asked += 1
        request = self._under_way = self._asked
        slow = not world.calm and world.chance(0.1)
        longest = REPORT_TIMEOUT * 2 if slow else min(scenario.longest_delay, REPORT_TIMEOUT / 4)

        def arrives() -> None:
            if self.catalog.away:
                return
            stored = self.catalog.store(self.segment, publisher.incarnation, record)
            complete = self.catalog.complete
            if world.calm or not world.chance(0.05):
                world.after(
                    world.between(0.0005, longest), lambda: self._when_running(lambda: answer(stored, complete))
                )

        def answer(stored: int, complete: bool) -> None:
            if self.publisher is not publisher or self._under_way != request:
                return
            self._under_way = 0
            publisher.recorded(stored, world.now)
            if complete:
                publisher.completed()
            self._pump()

        def given_up() -> None:
            if self.publisher is publisher and self.up and self._under_way == request:
                self._under_way = 0
                self._report_record()

        world.after(world.between(0.0005, longest), arrives)
        world.after(REPORT_TIMEOUT, given_up)

    # ---- effects ----

    def _pump(self) -> None:
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
            if self._disk is None:
                self._logged(effects)
            self._carry_out(effects)

    def _must_sync(self, entry: Log) -> bool:
        """E10: whether the disk must have it before anybody is told."""
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
        packer, ask = wire.Packer(b"C" + self.channel), False
        for effect in effects:
            match effect:
                case Push(message):
                    packer.add(message)
                case Reply():
                    self._reply(effect)
                case Answer():
                    self._to(effect.peer, wire.encode(*effect.messages))
                case Private():
                    self._push(packer)
                    frames = wire.encode(effect.message, prefix=b"P" + effect.subscription)
                    self._publish(b"P" + effect.subscription, frames)
                case ReportFinishing():
                    self._finishing(effect)
                case AskRecord():
                    ask = True
                case FindState() | FindBeginning() | ReadLog():
                    self._read(effect)
        self._push(packer)
        if ask:
            self._report_record()

    def _read(self, ask: FindState | FindBeginning | ReadLog) -> None:
        """Ask the disk, which takes a while."""
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
                    self._to(ask.peer, wire.encode(m.Chunk(ask.request, len(events), False), *events))
                    self.server.was_read(ask.peer, ask.request, events[-1].seq)
            except HistoryTruncated as error:
                self.server.not_read(ask.peer, ask.request, error)
            self._pump()

        self.world.after(self.world.between(0, self.scenario.longest_sync), lambda: self._when_running(read))

    def _logged(self, effects: list[PublisherEffect]) -> None:
        for event in events_of(effects):
            if self.world.tracing:
                self.world.note(f"segment {self.segment} log {event}")
            self.oracle.logged(self.log, event)

    def _push(self, packer: wire.Packer) -> None:
        self._publish(b"C" + self.channel, packer.flush())

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
        message, entry = reply.message, self._connections.get(reply.peer)
        if type(message) is m.Opened and entry is not None:
            self.oracle.opened(self.log, *entry[1].owner)
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

    def _finishing(self, report: ReportFinishing) -> None:
        incarnation = self.publisher.incarnation

        def answered(complete: bool) -> None:
            if self.up and self.publisher.incarnation == incarnation:
                self.publisher.finishing_answered(report.number, complete, self.world.now)
                self._pump()

        def arrives() -> None:
            if self.catalog.away:
                self.world.after(0.3, arrives)
                return
            complete = self.catalog.finish(self.segment, incarnation, report.number, report.finishing)
            self.world.note(f"catalog: segment {self.segment} finishing={report.finishing}, complete={complete}")
            self.world.after(self.world.between(0.001, 0.3), lambda: self._when_running(lambda: answered(complete)))

        self.world.after(self.world.between(0.001, 0.3), arrives)
