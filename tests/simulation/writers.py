"""Applications that write: one process a session, doing plausible things at random, dying, hanging and coming back.

The simulated counterpart of the client's writer: connections around a `WriterMachine`.
"""

from collections.abc import Callable

from tests.chaos.history import Phase, times
from tests.simulation.catalog import Catalog
from tests.simulation.links import Connection, Socket
from tests.simulation.nodes import Node
from tests.simulation.oracle import Asked, Oracle, Outcome, Times, Violation, meta_of, topic_of
from tests.simulation.order import reached
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

from epochal.errors import (
    CapabilityError,
    EpochAbortedError,
    EpochalError,
    NoPublisher,
    StreamComplete,
    StreamGone,
    WriterClosed,
)
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.times import Time
from epochal.protocol.wire import Frames
from epochal.protocol.writer.effects import Acked, Failed, Moved, Over, Reconnect, Send, SessionReady
from epochal.protocol.writer.effects import WriterReport as Told
from epochal.protocol.writer.machine import WriterMachine

TICK = 0.3
HURRY = 0.02
_MOST_PENDING = 30


class Process:
    """One session: a machine, a connection a segment, and an application that uses them."""

    def __init__(
        self, world: World, scenario: Scenario, nodes: dict[str, Node], oracle: Oracle, writer: str, session: int
    ):
        self.world, self.scenario, self.nodes = world, scenario, nodes
        self.machine = WriterMachine("uid", scenario.time_shape, scenario.names, writer, session, now=world.now)
        self.told = oracle.session(writer, session)
        self._oracle = oracle
        self._connections: dict[str, Connection] = {}
        self._appends: dict[int, Asked] = {}
        self._moves: dict[int, int] = {}
        """Ticket of a move -> its number in the history."""
        self._leaving = 0
        self._leave_failed = False
        self._incarnations: dict[str, int] = {}
        """Of each segment, the one that acknowledged last."""
        self._inbox: list[Callable[[], object]] = []
        self.hung = False
        self.dead = False
        self.ready = False
        self.finished = False
        """Whether `finish` took effect everywhere."""
        self.name = f"{writer}.{session}"
        for segment in scenario.names:
            world.after(world.between(0.001, 0.2), lambda segment=segment: self._connect(segment))  # type: ignore[misc]
        world.after(TICK, self._ticks)

    @property
    def running(self) -> bool:
        """Whether this process still does something."""
        return not self.dead and not self.machine.over

    # ---- connections ----

    def _connect(self, segment: str) -> None:
        if not self.running or segment in self._connections:
            return
        connection = self.nodes[segment].connect(Socket.INGEST, (self.told.writer, self.told.number))
        if connection is None:
            self.world.after(self.world.between(0.1, 0.5), lambda: self._connect(segment))
            return
        self._connections[segment] = connection
        connection.on_client = lambda frames: self._when_awake(lambda: self._arrived(segment, connection, frames))
        connection.on_lost = lambda: self._when_awake(lambda: self._lost(segment, connection))
        self.machine.connected(segment)
        self.pump()

    def _lost(self, segment: str, connection: Connection) -> None:
        if self._connections.get(segment) is connection:
            del self._connections[segment]
            self.machine.disconnected(segment)
            self.world.after(self.world.between(0.01, 0.3), lambda: self._connect(segment))

    def _arrived(self, segment: str, connection: Connection, frames: Frames) -> None:
        if self._connections.get(segment) is connection:
            for message in wire.decode(frames):
                self.machine.receive(segment, message)
            self.pump()

    def _when_awake(self, act: Callable[[], object]) -> None:
        if self.dead:
            return
        if self.hung:
            self._inbox.append(act)
        else:
            act()

    def _ticks(self) -> None:
        if self.running:
            if not self.hung:
                self.machine.tick(self.world.now)
                self.pump()
            self.world.after(TICK, self._ticks)

    def pump(self) -> None:
        """Take the machine's reports, and do what it wants done."""
        for told in self.machine.reports():
            self._hear(told)
        for effect in self.machine.take():
            connection = self._connections.get(effect.segment)
            if connection is None:
                continue
            if type(effect) is Reconnect:
                self.world.note(f"{self.name}: reconnect {effect.segment}: {effect.reason}")
                connection.close()
                self._lost(effect.segment, connection)
            elif type(effect) is Send:
                self._declare(effect.message)
                for frames in wire.encode(effect.message):
                    connection.to_server(frames)
        if self.machine.over:
            self._end()

    def _declare(self, message: m.Message) -> None:
        """E1: no time is given up while an append at it is not acknowledged. What is given up is declared whole."""
        held: Times
        match message:
            case m.Hold():
                held = frozenset(message.times)
            case m.Leave() if message.how is not m.Leaving.ABORT:
                held = frozenset()
            case m.Open(resume=m.Resume() as resume) if not self.told.aborted_all:
                held = frozenset(resume.held)
            case _:
                return
        for asked in self._appends.values():
            if not reached(held, asked.time):
                raise Violation(f"E1: {self.name} sends {message} before {asked.payload!r} is acknowledged")
        if self.ready:  # before, it takes what all segments can give it, and gives up nothing of its own (E5)
            self.told.sent.append(held)

    def _end(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            # What was sent last still arrives; then the process is gone.
            self.world.after(2.0, connection.close)

    # ---- what the application hears ----

    def _hear(self, told: Told) -> None:
        if self.world.tracing and type(told) is not Acked:
            self.world.note(f"{self.name}: {told!r}")
        match told:
            case SessionReady():
                self.ready = True
                self.told.held = frozenset(told.held)
                self.world.history.write(*self._identity, "holds", times=times(told.held))
                for time in self.machine.pending_epochs:
                    if self.machine.held.less_equal(time) and self.world.chance(0.3):
                        self._ask_abort(time)
            case Acked():
                self._acked(told)
            case Moved(ticket):
                if ticket == self._leaving:
                    self.finished = self._how is m.Leaving.FINISH
                if ticket in self._moves:
                    self.world.history.left(*self._identity, self._moves.pop(ticket))
            case Failed():
                self._failed(told)
            case Over():
                self._error(told.error)
                self.finished = self.finished or isinstance(told.error, StreamComplete)
                if isinstance(told.error, StreamGone | NoPublisher):
                    raise Violation(f"E48: {self.name} ends, and the stream is there: {told.error}")

    @property
    def _identity(self) -> tuple[str, int]:
        return self.told.writer, self.told.number

    def _error(self, error: EpochalError) -> None:
        self.world.history.write(*self._identity, "error", code=error.code, text=str(error))

    def _acked(self, acked: Acked) -> None:
        asked, incarnation = self._appends.pop(acked.ticket), acked.position.incarnation
        if incarnation < self._incarnations.get(asked.segment, 0):
            raise Violation(f"E12: {self.name} believes incarnation {incarnation} of {asked.segment} after a later one")
        self._incarnations[asked.segment] = incarnation
        self._oracle.acknowledged(asked, incarnation)
        self.world.history.append(asked, Phase.OK, position=[incarnation, acked.position.seq])

    def _failed(self, failed: Failed) -> None:
        self._leave_failed = self._leave_failed or failed.ticket == self._leaving
        asked = self._appends.pop(failed.ticket, None)
        if asked is not None:
            asked.outcome = Outcome.FAILED
            if isinstance(failed.error, EpochAbortedError | CapabilityError):
                self.world.history.append(asked, Phase.FAIL, code=failed.error.code)
            judged = not self.told.aborted_all
            if isinstance(failed.error, CapabilityError) and judged:
                raise Violation(f"E5: a publisher refused what the writer took for allowed: {failed.error}")

    # ---- what the application does ----

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except EpochalError as error:
            self.world.note(f"{self.name}: {type(error).__name__}: {error}")
            return False
        return True

    def step(self) -> None:
        """Do one random thing."""
        if not self.running or not self.ready or self.hung or self._leaving:
            return
        dice = self.world.random.random()
        if dice < 0.62:
            for _ in range(self.world.random.choice((1, 1, 2, 4))):
                self._append()
        elif dice < 0.88:
            self._advance()
        elif dice < 0.95:
            self._hold_or_release()
        elif dice < 0.985:
            self._abort()
        else:
            self.leave(self.world.random.choice((m.Leaving.CLOSE, m.Leaving.FINISH, m.Leaving.ABORT)))
        self.pump()

    def _append(self) -> None:
        machine, random = self.machine, self.world.random
        if machine.outstanding > _MOST_PENDING:
            return
        session = self.told
        time = self._time_near(random.choice(list(machine.held)), 2)
        segment = random.choices(self.scenario.names, self.scenario.skew)[0]
        session.order += 1
        payload = f"{self.name}.{session.order}".encode() + b" " * random.choice((0, 0, 10, 200))

        def ask() -> None:
            ticket = machine.appends.append(
                segment, time, topic_of(payload), 1, payload, meta_of(payload), awaited=random.random() < 0.2
            )
            self._appends[ticket] = asked

        asked = Asked(payload, session, segment, time, session.order)
        if self._try(ask):
            self._oracle.asked(asked)
            self.world.history.append(asked, Phase.INVOKE)

    def _advance(self) -> None:
        random = self.world.random
        self._raise_failure()
        time = self._time_near(random.choice(list(self.machine.held)), 2)
        awaited = random.random() < 0.5
        self._move(lambda: self.machine.advance(time, awaited=awaited))

    def _hold_or_release(self) -> None:
        random = self.world.random
        self._raise_failure()
        held = list(self.machine.held)
        time = random.choice(held)
        if random.random() < 0.5:
            self._move(lambda: self.machine.hold(self._time_near(time, 3)))
        else:
            self._move(lambda: self.machine.release(time))

    def _abort(self) -> None:
        if self.told.appends:
            time = self.told.appends[-1].time
            self._ask_abort(time)

    def _ask_abort(self, time: Time) -> None:
        self.world.history.write(*self._identity, "abort", Phase.INVOKE, time=time)
        self._try(lambda: self.machine.abort(time))

    def _raise_failure(self) -> None:
        self._try(self.machine.raise_failure)

    def leave(self, how: m.Leaving) -> None:
        """Close, finish, or leave by an exception."""
        if not self.ready or self._leaving or self.hung or not self.running:
            return
        if how is not m.Leaving.ABORT:
            self._raise_failure()

        def ask() -> int:
            self._leaving = self.machine.leave(how, awaited=True)
            return self._leaving

        self._how, self._leave_failed = how, False
        self.told.aborted_all = how is m.Leaving.ABORT
        if how is m.Leaving.ABORT:
            self._error(WriterClosed("left by an exception"))
            self._try(ask)
        else:
            self._move(ask, leaves=how)
        self.pump()

    def retry_leave(self) -> None:
        """Ask again after a move that failed: the failure has been seen."""
        if self._leaving and self.running and self.machine.outstanding == 0 and self._leave_failed:
            self._leaving = 0

    def _move(self, ask: Callable[[], int], *, leaves: m.Leaving | None = None) -> None:
        """Change what is held, after all appends so far; or hold nothing any more."""
        self.told.order += 1
        tickets: list[int] = []
        if self._try(lambda: tickets.append(ask())):
            held, closes = () if leaves else tuple(self.machine.held), leaves is m.Leaving.CLOSE
            self._moves[tickets[0]] = self.world.history.leave(*self._identity, held, closes=closes)

    def hurry(self, until: float) -> None:
        """Move on every `HURRY` seconds, faster than the catalog can record it; now and then append something."""
        if self.world.now > until or not self.running or not self.ready or self.hung or self._leaving:
            return
        if self.world.chance(0.1):
            self._append()
        self._raise_failure()
        time = _later(self.world.random.choice(list(self.machine.held)))
        self._move(lambda: self.machine.advance(time))
        self.pump()
        self.world.after(HURRY, lambda: self.hurry(until))

    def _time_near(self, time: Time, spread: int) -> Time:
        if isinstance(time, int):
            return time + self.world.random.choice((0, 0, 1, spread))
        return tuple(self._time_near(part, spread) for part in time)

    # ---- faults ----

    def die(self) -> None:
        """Vanish; publishers hear nothing more."""
        self.dead = True
        self.world.note(f"{self.name}: dies")
        self.world.history.fault("kill", self.told.writer)
        for connection in self._connections.values():
            connection.on_client = lambda frames: None
            connection.on_lost = lambda: None

    def hang(self, seconds: float) -> None:
        """Stop for a while, then go on as if nothing had happened."""
        self.hung = True
        self.world.note(f"{self.name}: hangs for {seconds:.2f} s")
        self.world.after(seconds, self.wake)

    def wake(self) -> None:
        """Go on; what has arrived meanwhile comes first."""
        if self.hung:
            self.hung = False
            inbox, self._inbox = self._inbox, []
            for act in inbox:
                self._when_awake(act)

    def break_connection(self, notice: float) -> None:
        """Break one of its connections."""
        standing = [connection for connection in self._connections.values() if connection.up]
        if standing:
            self.world.count("breaks")
            self.world.note(f"{self.name}: a connection breaks")
            self.world.random.choice(standing).sever(notice)


def _later(time: Time) -> Time:
    return time + 1 if isinstance(time, int) else tuple(map(_later, time))


class Writer:
    """One writer id: starts processes for it, one after the other, or a new one while the old one hangs."""

    def __init__(
        self, world: World, scenario: Scenario, nodes: dict[str, Node], oracle: Oracle, catalog: Catalog, name: str
    ):
        self.world, self.scenario, self.nodes, self.oracle, self.catalog = world, scenario, nodes, oracle, catalog
        self.name = name
        self.processes: list[Process] = []
        self.must_finish = False
        self._retired = False

    @property
    def process(self) -> Process | None:
        """The newest."""
        return self.processes[-1] if self.processes else None

    @property
    def finished(self) -> bool:
        """Whether its newest process has finished the stream."""
        return self.process is not None and self.process.finished

    def start(self) -> None:
        """Open the next session, unless the stream is complete."""
        session = None if self._retired or self.catalog.away else self.catalog.session(self.name)
        if session is not None:
            self.world.note(f"{self.name}: session {session} starts")
            self.processes.append(Process(self.world, self.scenario, self.nodes, self.oracle, self.name, session))

    def die(self) -> None:
        """All its processes die with their machine; a new one is started after a while."""
        self.world.count("deaths")
        for process in self.processes:
            process.die()
        self.world.after(self.world.between(0.1, 2.0), self.start)

    @property
    def vanished(self) -> bool:
        """Whether it is gone for good, and did not finish."""
        return self._retired and not self.finished

    def vanish(self) -> None:
        """Die, and never come back."""
        if not self.finished:
            self._retired = True
            self.world.count("vanished")
            for process in self.processes:
                process.die()

    def retire(self) -> None:
        """Stop for good: each process leaves somehow, or just dies."""
        self._retired = True
        for process in self.processes:
            process.wake()
            how = self.world.random.choice((*m.Leaving, None))
            if how is None or not process.ready:
                process.die()
            else:
                process.leave(how)
                self.world.after(5.0, process.die)

    def lives(self) -> None:
        """Do something, or suffer something, now and then."""
        if self._retired:
            return
        if self.must_finish:
            self._finish()
            self.world.after(0.3, self.lives)
            return
        world, process = self.world, self.process
        pause = world.random.expovariate(1 / self.scenario.pace)
        for other in self.processes:
            other.step()
        if process is None or not process.running:
            if world.chance(min(1.0, pause / 1.5)):
                self.start()
        elif not world.calm:
            self._suffer(process, pause)
        world.after(pause, self.lives)

    def _suffer(self, process: Process, passed: float) -> None:
        world, scenario = self.world, self.scenario
        if world.chance(scenario.break_rate * passed):
            process.break_connection(world.random.choice((0.05, 0.5, 3.0)))
        if world.chance(scenario.death_rate * passed):
            world.count("deaths")
            process.die()
        elif not process.hung and world.chance(scenario.hang_rate * passed):
            world.count("hangs")
            process.hang(world.between(0.2, scenario.writer_timeout + 3))
            if world.chance(0.3):  # taken for dead: somebody starts it again
                world.after(world.between(0.1, 3), self.start)

        if world.chance(scenario.hurry_rate * passed):
            world.count("hurries")
            process.hurry(world.now + world.between(0.5, 5.0))

    def _finish(self) -> None:
        """Work towards the end: finish, in as many sessions as it takes."""
        process = self.process
        if self.finished or self.catalog.complete:
            return
        if process is None or not process.running:
            self.start()
            return
        if not self.world.calm and self.world.chance(self.scenario.break_rate * 0.3):
            process.break_connection(self.world.random.choice((0.05, 0.5)))
        process.retry_leave()
        process.leave(m.Leaving.FINISH)
