"""Relays: each follows the publisher of a segment, or another relay, and serves readers in its place.

The simulated counterpart of the relay service. A relay dies, stalls, loses its connection, and changes its way.
"""

from collections.abc import Sequence
from typing import Protocol

from tests.simulation.links import Connection, Socket
from tests.simulation.scenario import Scenario
from tests.simulation.world import Act, World

from epochal.errors import EpochalError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import Private, PublisherEffect, Push, SendAnswers
from epochal.protocol.relay.effects import ForReaders, Forward, HangUp, Want
from epochal.protocol.relay.run import Run
from epochal.protocol.relay.segment import RelayedSegment, RelayLimits
from epochal.protocol.relay.union import UnionTimes
from epochal.protocol.subscriber.effects import Request, SubscribePrefix
from epochal.protocol.subscriber.follower import Follower, FollowerSettings
from epochal.protocol.subscriber.since import Begin, From
from epochal.protocol.subscriber.upstream_filter import FilterTimes
from epochal.protocol.wire import Frames

TICK = 0.2
SETTINGS = FollowerSettings(filter=FilterTimes(settled=0.3, between_changes=1.0))
MEMORY = 3000
"""Bytes of events, so that some that are asked for have left it."""


class Server(Protocol):
    """Whom one can connect to: a publisher, or a relay."""

    def connect(self, socket: Socket, owner: tuple[str, int]) -> Connection | None:
        """A connection; None while nobody accepts one."""
        ...


class RelayNode:
    """One relay of one segment; `ways` are whom it may follow."""

    def __init__(self, world: World, scenario: Scenario, name: str, segment: str, ways: Sequence[Server]) -> None:
        self.world, self.scenario, self.name, self.segment = world, scenario, name, segment
        self.ways: Sequence[Server] = ways
        self.up = False
        self._names = 0
        self._stalled_until = 0.0
        self._inbox: list[Act] = []
        self._start()
        world.after(world.between(0, TICK), self._ticks)

    # ---- lives ----

    def _start(self) -> None:
        self.up = True
        limits = RelayLimits(memory=MEMORY, union=UnionTimes(linger=0.5, recover=3.0), max_passed_on=4)
        self.machine = RelayedSegment(
            "uid", self.segment, self.scenario.time_shape, self.name, limits, self.world.random.randbytes
        )
        self._clients: dict[bytes, tuple[Socket, Connection]] = {}
        self._upstream: tuple[Connection, Connection] | None = None
        self._way: Server | None = None
        self._follower: Follower | None = None
        self._begin: Begin = From.LIVE
        self._incarnation = 0
        self._forwarded_requests: dict[int, Connection] = {}
        self._follow()

    def crash(self, back_after: float) -> None:
        """Die: memory and connections are gone."""
        self.world.count("relays killed")
        self.world.note(f"{self.name}: dies")
        self.up = False
        self._inbox.clear()
        self._stalled_until = 0.0
        self._hang_up_upstream()
        clients, self._clients = self._clients, {}
        for _, connection in clients.values():
            connection.on_left = lambda: None
            connection.sever(0.5)
        self.world.after(back_after, self._start)

    def end_in_order(self, back_after: float) -> None:
        """Stop as a process does that is told to: everybody hears of it."""
        if self._stalled_until:
            return
        self.world.count("relays stopped")
        self.machine.end("the relay stops")
        self._pump()
        self.crash(back_after)

    def stall(self, seconds: float) -> None:
        """Do nothing for a while; what arrives waits."""
        self.world.count("relays stalled")
        self.world.note(f"{self.name}: stalls for {seconds:.2f} s")
        self._stalled_until = self.world.now + seconds
        self.world.after(seconds, self._unstall)

    def _unstall(self) -> None:
        if self._stalled_until and self.world.now >= self._stalled_until:
            self._stalled_until = 0.0
            inbox, self._inbox = self._inbox, []
            if self._follower is not None:
                self._follower.resume(self.world.now)
            for act in inbox:
                act()

    def _when_running(self, act: Act) -> None:
        if self.up:
            if self._stalled_until:
                self._inbox.append(act)
            else:
                act()

    def _ticks(self) -> None:
        self.world.after(TICK, self._ticks)
        if not self.up or self._stalled_until:
            return
        if self._follower is not None:
            self._follower.tick(self.world.now)
            self._act(self._follower)
        self.machine.tick(self.world.now)
        self._pump()

    # ---- upstream ----

    def change_way(self) -> None:
        """Follow somebody else."""
        if self._follower is not None and not self._stalled_until:
            self.world.count("ways changed")
            self._lost(self._follower)

    def sever(self, notice: float) -> None:
        """Break one of the connections upstream."""
        if self._upstream is not None:
            self.world.random.choice(self._upstream).sever(notice)

    def _follow(self) -> None:
        if not self.up or self._upstream is not None:
            return
        way = self.ways[0] if self.world.chance(0.4) else self.world.random.choice(self.ways)
        events, requests = way.connect(Socket.EVENTS, ("", 0)), way.connect(Socket.REQUESTS, ("", 0))
        if events is None or requests is None:
            self.world.after(self.world.between(0.1, 0.5), self._follow)
            return
        self._way, self._upstream = way, (events, requests)
        follower = self._follower = Follower(
            "uid", self.segment, self._begin, shape=self.scenario.time_shape,
            fresh_nonce=lambda: self.world.random.randbytes(16), now=self.world.now,
            continuing=self.machine.run is not None, least_incarnation=self._incarnation, settings=SETTINGS,
            topics=self.machine.wanted, whole_filter=True, relay=self.name,
        )  # fmt: skip
        events.on_client = lambda frames: self._when_running(lambda: self._pushed(follower, frames))
        requests.on_client = lambda frames: self._when_running(lambda: self._answered(follower, frames))
        events.on_lost = requests.on_lost = lambda: self._when_running(lambda: self._lost(follower))
        self._act(follower)

    def _pushed(self, follower: Follower, frames: Frames) -> None:
        size = wire.NONCE_PREFIX if frames[0][:1] == b"P" else wire.CHANNEL_PREFIX
        for message in wire.decode(frames, prefix=size):
            follower.pushed(frames[0][:size], message, self.world.now)
        self._act(follower)

    def _answered(self, follower: Follower, frames: Frames) -> None:
        for message in wire.decode(frames):
            if self.world.tracing:
                self.world.note(f"{self.name}: upstream answers {message}")
            if isinstance(message, m.Welcome):
                self._incarnation = max(self._incarnation, message.incarnation)
            follower.answered(message, self.world.now)
        self._act(follower)

    def _act(self, follower: Follower) -> None:
        if self._upstream is None or follower is not self._follower:
            return
        events, requests = self._upstream
        for effect in follower.take():
            match effect:
                case Request():
                    for frames in wire.encode(effect.message):
                        requests.to_server(frames)
                case SubscribePrefix():
                    events.to_server([b"\x01" + effect.prefix])
                case _:
                    events.to_server([b"\x00" + effect.prefix])
        reports = follower.reports()
        if self.world.tracing:
            for report in reports:
                self.world.note(f"{self.name}: {report}")
        before = self.machine.run
        self.machine.reported(reports, follower.welcome, self.world.now)
        self.world.counts["runs ended"] += before is not None and self.machine.run is not before
        if follower.error is not None:
            self._broke(follower, follower.error)
        self._pump()

    def _broke(self, follower: Follower, error: EpochalError) -> None:
        self.world.note(f"{self.name}: broke: {error}")
        self.world.counts["loops refused"] += "would follow itself" in str(error)
        self._lost(follower)

    def _lost(self, follower: Follower) -> None:
        if self._follower is not follower:
            return
        if self.machine.run is not None:
            self._begin = self.machine.position
        self.machine.lost()
        self._hang_up_upstream()
        self._pump()
        self.world.after(self.world.between(0.01, 0.4), self._follow)

    def _hang_up_upstream(self) -> None:
        connections, self._upstream, self._follower = self._upstream, None, None
        for connection in (*(connections or ()), *self._forwarded_requests.values()):
            connection.close()
        self._forwarded_requests = {}

    # ---- readers ----

    def connect(self, socket: Socket, owner: tuple[str, int]) -> Connection | None:
        """Accept a connection; None while the process is not there."""
        if not self.up:
            return None
        self._names += 1
        name = f"{self.name}-{socket}-{self._names}".encode()
        connection = Connection(self.world, name, owner, self.scenario.longest_delay)
        self._clients[name] = (socket, connection)
        connection.on_server = lambda frames: self._when_running(lambda: self._arrived(socket, connection, frames))
        connection.on_left = lambda: self._when_running(lambda: self._left(connection))
        return connection

    def _left(self, connection: Connection) -> None:
        self._clients.pop(connection.name, None)
        for prefix in connection.prefixes:
            self._unsubscribed(prefix)

    def _arrived(self, socket: Socket, connection: Connection, frames: Frames) -> None:
        if socket is Socket.EVENTS:
            self._subscription(connection, frames[0])
        else:
            for message in wire.decode(frames):
                if self.world.tracing:
                    self.world.note(f"{self.name} <- {connection.name.decode()} {message}")
                self.machine.receive(connection.name, message, self.world.now)
        self._pump()

    def _subscription(self, connection: Connection, notice: bytes) -> None:
        comes, prefix = notice[0] == 1, notice[1:]
        if not comes:
            connection.prefixes.pop(prefix, None)
            self._unsubscribed(prefix)
            return
        connection.prefixes[prefix] = None
        run = self.machine.run
        if run is None:
            return
        if prefix[:1] == b"C":
            run.channels.hears(prefix[1:], True)
        elif run.server.expects(prefix[1:]) or prefix[1:] in run.server.subscriptions:
            run.server.subscribed(prefix[1:], self.world.now)
        else:
            refused = m.Refused(0, "relay_ended", "the subscription id is of no hello to this run")
            self._publish(prefix, wire.encode(refused, prefix=prefix))

    def _unsubscribed(self, prefix: bytes) -> None:
        run = self.machine.run
        if run is None or any(prefix in connection.prefixes for _, connection in self._clients.values()):
            return
        if prefix[:1] == b"P":
            run.server.unsubscribed(prefix[1:])
        else:
            run.channels.hears(prefix[1:], False)

    # ---- effects ----

    def _pump(self) -> None:
        while effects := self.machine.take():
            for effect in effects:
                match effect:
                    case ForReaders(run, of_run):
                        self._for_readers(run, of_run)
                    case SendAnswers(peer, messages):
                        self._to(peer, messages)
                    case Want(topics, widens):
                        if self._follower is not None:
                            self._follower.want(topics, self.world.now, widens=widens)
                            self._act(self._follower)
                    case Forward():
                        self._forward(effect)
                    case HangUp(number):
                        if (forwarded := self._forwarded_requests.pop(number, None)) is not None:
                            forwarded.close()

    def _for_readers(self, run: Run, effects: list[PublisherEffect]) -> None:
        for effect in effects:
            match effect:
                case Push(message):
                    run.channels.push(message)
                case SendAnswers(peer, messages):
                    self.world.counts["from memory"] += isinstance(messages[0], m.Opening)
                    self._to(peer, messages)
                case Private():
                    self._flush(run.channels)
                    private = run.channels.left(effect.message, effect.replaced)
                    prefix = b"P" + effect.subscription
                    self._publish(prefix, wire.encode(private, prefix=prefix))
                case _:
                    raise AssertionError(effect)
        if run.over is not None:
            run.channels.end(run.over)
        self._flush(run.channels)

    def _flush(self, channels: Channels) -> None:
        for frames in channels.flush():
            self._publish(frames[0][: wire.CHANNEL_PREFIX], [frames])

    def _publish(self, prefix: bytes, messages: list[Frames]) -> None:
        for _, connection in self._clients.values():
            if prefix in connection.prefixes:
                for frames in messages:
                    connection.push(frames, self.scenario.high_water)

    def _to(self, peer: bytes, messages: Sequence[m.Message]) -> None:
        entry = self._clients.get(peer)
        if entry is not None:
            for frames in wire.encode(*messages):
                entry[1].to_client(frames)

    def _forward(self, effect: Forward) -> None:
        number = effect.number
        forwarded = self._forwarded_requests.get(number)
        if forwarded is None:
            self.world.count("passed on")
            forwarded = None if self._way is None else self._way.connect(Socket.REQUESTS, ("", 0))
            if forwarded is None:
                self.world.after(0, lambda: self._when_running(lambda: self._cut(number)))
                return
            self._forwarded_requests[number] = forwarded
            forwarded.on_client = lambda frames: self._when_running(lambda: self._passed_back(number, frames))
            forwarded.on_lost = lambda: self._when_running(lambda: self._cut(number))
        for frames in wire.encode(effect.message):
            forwarded.to_server(frames)

    def _passed_back(self, number: int, frames: Frames) -> None:
        self.machine.answered(number, list(wire.decode(frames)), self.world.now)
        self._pump()

    def _cut(self, number: int) -> None:
        self.machine.cut(number)
        self._pump()
