"""All parts in one world, moved by small steps; and the oracle, which sees everything and forgets nothing.

A schedule is a list of steps. A step that cannot be taken (a crash of a process that is down) is skipped. So every part
of a schedule is a schedule too, which makes shrinking simple. Nothing here is random.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from tests.model.clauses import Clause
from tests.model.order import NONE, Order, Time, Times
from tests.model.publisher import Publisher
from tests.model.reader import Reader
from tests.model.records import Answer, Asked, Catalog, Row
from tests.model.writer import Client

Step: TypeAlias = tuple[Any, ...]
ROUNDS = 60
"""How many times the calm ending repeats its steps before it counts as stuck."""


class Broken(Exception):
    """A promise is broken; the message says which one, and how."""


class Oracle:
    """All that was ever logged, published, aborted and given; it judges at once."""

    def __init__(self) -> None:
        self.records: defaultdict[Time, set[tuple[int, int]]] = defaultdict(set)
        self.owner: dict[int, str] = {}
        self.meant: defaultdict[Time, set[tuple[int, int]]] = defaultdict(set)
        """By epoch: the (segment, record) pairs that a writer meant when it declared the epoch whole."""
        self.known: defaultdict[int, set[str]] = defaultdict(set)
        """By segment: writers that some stored record named, and that have never left or been lost there."""
        self.went: defaultdict[int, set[str]] = defaultdict(set)
        self.whole: set[tuple[str, Time]] = set()
        """(writer, epoch) that the writer's application declared whole."""
        self.passed: defaultdict[int, set[Time]] = defaultdict(set)
        """By segment: times that some frontier published there no longer reached."""
        self.dead: defaultdict[int, set[Time]] = defaultdict(set)
        """By segment: times that a publisher has reported as aborted there."""
        self.opened: dict[str, int] = {}
        """The newest session of each writer whose open has returned to the application."""
        self.readers: list[Reader] = []
        self.barred: defaultdict[str, set[Time]] = defaultdict(set)
        """By reader: what was aborted somewhere before it joined there."""
        self.given: dict[Time, frozenset[tuple[int, int]]] = {}
        self.all: Times = NONE
        self.frontiers: dict[str, Times] = {}
        self.decided: defaultdict[str, set[Time]] = defaultdict(set)

    def logged(self, segment: int, time: Time, record: int, writer: str, session: int) -> None:
        """A record is logged and acknowledged."""
        what = f"record {record} of {writer}, session {session}, is logged at time {time} of segment {segment}"
        if session < self.opened.get(writer, 0):
            raise Broken(f"E6: {what}, after session {self.opened[writer]} had opened")
        if time in self.passed[segment]:
            raise Broken(f"E11 b: {what}, after a frontier told there had passed it")
        if time in self.dead[segment]:
            raise Broken(f"E2: {what}, after it was aborted there")
        for reader in self.readers:
            if time in reader.whole:
                raise Broken(f"E15: {what}, after reader {reader.name} had been given that epoch as whole")
        self.records[time].add((segment, record))
        self.owner[record] = writer

    def told(self, segment: int, reach: Times) -> None:
        """A frontier is published."""
        self.passed[segment] |= self.all - reach

    def aborted(self, segment: int, times: Times) -> None:
        """Times are reported as aborted."""
        self.dead[segment] |= times

    def stored(self, segment: int, row: Row) -> None:
        """The catalog has a record, and so it publishes the frontier of that."""
        self.told(segment, row.reach)
        self.known[segment] |= row.writers - self.went[segment]

    def gone(self, segment: int, writer: str) -> None:
        """A writer has left a segment, or its time-out is over there."""
        self.went[segment].add(writer)
        self.known[segment].discard(writer)

    def turned_away(self, segment: int, writer: str, held: Times, first: Times) -> None:
        """A writer that resumes gets the answer that it is lost."""
        if writer in self.known[segment] and held <= first:
            raise Broken(f"E11 c: {writer} was known at segment {segment}, came back in time, and is WriterLost")
        self.gone(segment, writer)

    def left(self, client: Client, segment: int, times: Iterable[Time], publisher: Publisher) -> None:
        """It is confirmed to a session, which has heard of no loss, that it left times at which it had appended."""
        for time in sorted(set(times) - publisher.data):
            raise Broken(
                f"E11 c: {client.writer}, session {client.session}, leaves {time} at segment {segment} as whole; what "
                "it had appended is lost there, and it has not been told"
            )

    def joins(self, reader: Reader, segment: int) -> None:
        """A reader joins at a segment, for the first time or after a gap."""
        self.barred[reader.name] |= self.dead[segment] & reader.undecided

    def judge(self, reader: Reader) -> None:
        """Judge what a reader knows, after it has read."""
        if reader.merged - self.frontiers.get(reader.name, reader.merged):
            raise Broken(f"E17: the frontier of reader {reader.name} went back")
        self.frontiers[reader.name] = reader.merged
        for time in sorted(set(reader.whole) & reader.aborted):
            raise Broken(f"E17: reader {reader.name} was given {time} as whole and told that it is aborted")
        for time in sorted(reader.silent):
            raise Broken(f"E17: reader {reader.name} drops the data of {time}, and is not told")
        for time in sorted(set(reader.whole) - self.decided[reader.name]):
            self.decided[reader.name].add(time)
            self._given(reader, time, reader.whole[time])

    def _given(self, reader: Reader, time: Time, seen: frozenset[tuple[int, int]]) -> None:
        missing = sorted((self.records[time] | self.meant[time]) - seen)
        if missing:
            raise Broken(
                f"E15: reader {reader.name} is given epoch {time} as whole with the (segment, record) pairs "
                f"{sorted(seen)}, without {missing}"
            )
        for _, record in sorted(seen):
            if (self.owner[record], time) not in self.whole:
                raise Broken(
                    f"E3: reader {reader.name} is given epoch {time} as whole, which {self.owner[record]}, "
                    f"who wrote record {record}, has not declared whole"
                )
        if seen and time in self.barred[reader.name]:
            raise Broken(f"E2: reader {reader.name} is given epoch {time}, which was aborted before it joined")
        if seen and self.given.setdefault(time, seen) != seen:
            raise Broken(f"E17: epoch {time} is given as {sorted(seen)}, and was given as {sorted(self.given[time])}")


class World:
    """One stream."""

    def __init__(self, order: Order, segments: int, off: Iterable[Clause] = ()) -> None:
        self.order, self.off = order, frozenset(off)
        self.catalog = Catalog([Row(order.all) for _ in range(segments)], self.off)
        self.mail: list[Asked | Answer] = []
        self.publishers: list[Publisher | None] = [None] * segments
        self.clients: defaultdict[str, list[Client]] = defaultdict(list)
        self.readers: dict[str, Reader] = {}
        self.oracle = Oracle()
        self.oracle.all = order.all
        self.count = 0
        for segment in range(segments):
            self._start(segment)

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.do(step)

    def do(self, step: Step) -> bool:
        """Take one step; False if it could not be taken, and nothing has changed."""
        doing: Callable[..., bool] = getattr(self, "_" + step[0])
        return doing(*step[1:])

    # ---- writers; `w` is a writer's newest session, `w'` the previous one ----

    def _client(self, who: str) -> Client | None:
        sessions, back = self.clients[who.rstrip("'")], 1 + who.count("'")
        return sessions[-back] if len(sessions) >= back else None

    def _open(self, writer: str) -> bool:
        if not self.catalog.up or self.catalog.complete:
            return False
        session = self.catalog.sessions[writer] = self.catalog.sessions.get(writer, 0) + 1
        self.clients[writer].append(Client(writer, session, len(self.publishers), self.off))
        return True

    def _append(self, who: str, segment: int, time: Time) -> bool:
        client = self._client(who)
        if client is None or segment >= len(self.publishers) or not client.append(segment, time, self.count + 1):
            return False
        self.count += 1
        return True

    def _declare(self, client: Client, whole: Times | None) -> bool:
        self.oracle.whole |= {(client.writer, time) for time in whole or ()}
        for time, segment, record in client.sent:
            if time in (whole or ()):
                self.oracle.meant[time].add((segment, record))
        return whole is not None

    def _advance(self, who: str, time: Time) -> bool:
        """Move to `time` and all that it reaches."""
        client = self._client(who)
        if client is None or time not in client.held:
            return False
        return self._declare(client, client.move(self.order.up[time]))

    def _release(self, who: str, time: Time) -> bool:
        """Give up `time` alone, if it is a minimal one."""
        client = self._client(who)
        if client is None or time not in self.order.minimal(client.held):
            return False
        return self._declare(client, client.move(client.held - {time}))

    def _leave(self, who: str, how: str) -> bool:
        client = self._client(who)
        return client is not None and self._declare(client, client.leave(how))

    def _abort(self, who: str, time: Time) -> bool:
        client = self._client(who)
        return client is not None and client.abort(time)

    def _die(self, who: str) -> bool:
        client = self._client(who)
        if client is None or client.phase == "over":
            return False
        client.phase = "over"
        return True

    def _deliver(self, who: str, segment: int, answer: str = "") -> bool:
        """The session's next message to a segment; `answer` is "lost" if it does not come back."""
        client, publisher = self._client(who), self._publisher(segment)
        if client is None or publisher is None:
            return False
        return self._exchange(client, segment, publisher, heard=not answer)

    def _exchange(self, client: Client, segment: int, publisher: Publisher, *, heard: bool) -> bool:
        lane = client.lanes[segment]
        touched, queue, incarnation = set(lane.touched), list(lane.queue), lane.incarnation
        if not client.deliver(segment, publisher, heard=heard):
            return False
        confirmed = queue and lane.incarnation == incarnation and len(lane.queue) < len(queue)
        if confirmed and queue[0].kind == "hold":
            self.oracle.left(client, segment, touched - lane.touched, publisher)
        if client.phase == "open":
            self.oracle.opened[client.writer] = max(self.oracle.opened.get(client.writer, 0), client.session)
        return True

    # ---- publishers ----

    def _publisher(self, segment: int) -> Publisher | None:
        return self.publishers[segment] if segment < len(self.publishers) else None

    def _start(self, segment: int) -> bool:
        if not self.catalog.up or segment >= len(self.publishers) or self.publishers[segment] is not None:
            return False
        row = self.catalog.register(segment)
        publisher = Publisher(self.order, segment, row, self.catalog.sessions, self.off, self.mail.append, self.oracle)
        self.publishers[segment] = publisher
        if self.catalog.complete and Clause.COMPLETE_STANDS not in self.off:
            publisher.complete()
        return True

    def _crash(self, segment: int) -> bool:
        if self._publisher(segment) is None:
            return False
        self.publishers[segment] = None
        return True

    def _stop(self, segment: int) -> bool:
        publisher = self._publisher(segment)
        if publisher is None or publisher.stopping:
            return False
        publisher.stop()
        return True

    def _ask(self, segment: int, ahead: Time | None = None) -> bool:
        publisher = self._publisher(segment)
        return publisher is not None and publisher.ask(ahead)

    def _give_up(self, segment: int) -> bool:
        publisher = self._publisher(segment)
        return publisher is not None and publisher.give_up()

    def _lose(self, writer: str, segment: int) -> bool:
        publisher = self._publisher(segment)
        return publisher is not None and not publisher.stopping and publisher.lose(writer)

    # ---- the catalog, and what is on its way ----

    def _catalog(self, up: str) -> bool:
        self.catalog.up, before = up == "back", self.catalog.up
        return self.catalog.up != before

    def _arrive(self, index: int = 0, how: str = "") -> bool:
        """The `index`-th message that is on its way arrives; `how` is "twice" if it will arrive again."""
        if index >= len(self.mail) or (isinstance(self.mail[index], Asked) and not self.catalog.up):
            return False
        mail = self.mail[index] if how else self.mail.pop(index)
        if isinstance(mail, Asked):
            if not self.off:
                self._check(mail)
            answer = self.catalog.store(mail)
            if answer is not None:
                self.oracle.stored(mail.segment, self.catalog.rows[mail.segment])
                self.mail.append(answer)
        elif (publisher := self.publishers[mail.segment]) and publisher.incarnation == mail.incarnation:
            publisher.answered(mail.number)
        return True

    def _check(self, asked: Asked) -> None:
        """Raise `Broken` for a record that takes back what a horizon covers: no correct publisher sends one."""
        row, record = self.catalog.rows[asked.segment], asked.record
        if asked.incarnation != row.incarnation or record.number <= row.number or record.final:
            return
        assert record.reach is not None
        assert record.horizon is not None
        if not self.order.still(row.horizon, record.reach) <= record.horizon:
            raise Broken(f"E11: record {record.number} of segment {asked.segment} takes back what was covered")

    def _drop(self, index: int = 0) -> bool:
        """A message never arrives."""
        if index >= len(self.mail):
            return False
        del self.mail[index]
        return True

    def _complete(self) -> bool:
        """No segment holds for a writer, and each was asked to finish: the catalog records this, they release (E7)."""
        if not self.catalog.up:
            return False
        for publisher in self.publishers:
            if publisher is None or publisher.stopping:
                return False
            done = publisher.finishing and not any(w.present for w in publisher.writers.values())
            if not (self.catalog.complete or done):
                return False
        self.catalog.complete = True
        for publisher in self.publishers:
            if publisher is not None:
                publisher.complete()
        return True

    # ---- readers ----

    def _join(self, name: str, since: str = "") -> bool:
        if name in self.readers:
            return False
        self.readers[name] = Reader(name, self.order, len(self.publishers), from_start=bool(since), off=self.off)
        self.oracle.readers.append(self.readers[name])
        return True

    def _read(self, name: str, segment: int, most: int = 99) -> bool:
        reader, publisher = self.readers.get(name), self._publisher(segment)
        if reader is None or publisher is None:
            return False
        read = reader.read(segment, publisher, most, lambda at: self.oracle.joins(reader, at))
        self.oracle.judge(reader)
        return read

    def _resume(self, name: str) -> bool:
        """The reader's process dies; the next one goes on from its cursor (E16)."""
        reader = self.readers.get(name)
        if reader is None or not reader.joined:
            return False
        reader.resume()
        return True

    def _forget(self, name: str, segment: int) -> bool:
        """What the reader would read next is no longer there (a gap within an incarnation)."""
        reader = self.readers.get(name)
        if reader is None or segment >= len(reader.places) or not reader.places[segment].incarnation:
            return False
        reader.places[segment].forgotten = True
        return True

    # ---- the end ----

    def calm(self) -> None:
        """Faults end and writers finish: then the stream must end too (liveness)."""
        self.catalog.up = True
        for segment, publisher in enumerate(self.publishers):
            if publisher is not None and publisher.stopping:
                self._crash(segment)
        for name in ("late", "start"):
            self._join(name, "start" if name == "start" else "")
        for round_ in range(ROUNDS):
            for segment, publisher in enumerate(self.publishers):
                self._start(segment)
                if publisher is not None:
                    publisher.give_up()
                self._ask(segment)
            while self.mail:
                self._arrive()
            self._finish(round_)
            self._complete()
            for name in self.readers:
                for segment in range(len(self.publishers)):
                    while self._read(name, segment):
                        pass
            if self.catalog.complete and not self.mail and not any(p and p.told for p in self.publishers):
                break
        else:
            raise Broken(f"liveness: {self._stuck()}")
        for reader in self.readers.values():
            if reader.merged:
                raise Broken(f"liveness: reader {reader.name} never sees the end")

    def _finish(self, round_: int) -> None:
        """Every writer's newest session finishes; a writer that is gone comes back for that."""
        for writer in ("a", "b", "c"):
            sessions = self.clients[writer]
            finished = bool(sessions) and sessions[-1].phase == "over" and self._gone(writer)
            if not self.catalog.complete and (not sessions or (sessions[-1].phase == "over" and not finished)):
                self._open(writer)
            for client in sessions:
                for segment, publisher in enumerate(self.publishers):
                    while publisher and client.phase != "over" and self._progress(client, segment, publisher):
                        pass
            if sessions and sessions[-1].phase == "open":
                self._declare(sessions[-1], sessions[-1].leave("finish"))

    def _gone(self, writer: str) -> bool:
        """Whether no segment holds or waits for the writer, and each was asked to finish at some time."""
        return all(
            p is not None
            and writer not in p.awaited
            and not (writer in p.writers and p.writers[writer].present)
            and (p.finishing or any(w.present for w in p.writers.values()))
            for p in self.publishers
        )

    def _progress(self, client: Client, segment: int, publisher: Publisher) -> bool:
        lane = client.lanes[segment]
        before = (lane.incarnation, len(lane.queue), lane.left, client.phase)
        self._exchange(client, segment, publisher, heard=True)
        return before != (lane.incarnation, len(lane.queue), lane.left, client.phase)

    def _stuck(self) -> str:
        least = self.order.minimal
        return "; ".join(
            f"segment {p.segment} has told {sorted(least(p.told))}, holds {sorted(least(p.held))}"
            f", waits for {sorted(p.awaited)}, has {[w for w in p.writers if p.writers[w].present]}"
            for p in self.publishers
            if p
        )
