"""A writer's session, as the client library keeps it: what it holds, and what waits to be sent to each segment.

It and a publisher may each die alone, and they disagree when an answer is lost.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.clauses import Clause
from tests.model.order import NONE, Time, Times
from tests.model.publisher import Opened, Publisher, Resume


class Message(NamedTuple):
    """One message to a publisher: `append`, `hold`, `abort` or `leave`."""

    kind: str
    time: Time | None = None
    record: int = 0
    held: Times = NONE
    how: str = ""


@dataclass(slots=True)
class Lane:
    """One segment as the session knows it."""

    queue: list[Message] = field(default_factory=list)
    """Not acknowledged, in order; sent again to the next incarnation."""
    incarnation: int = 0
    ever_opened: bool = False
    held: Times = NONE
    """As the publisher confirmed it."""
    touched: set[Time] = field(default_factory=set)
    """Acknowledged there and not left by a confirmed move."""
    left: bool = False


class Client:
    """One session. Phases: opening, aborting, joining (E5), open, leaving, quitting (lost at one segment), over."""

    def __init__(self, writer: str, session: int, segments: int, off: frozenset[Clause]) -> None:
        self.writer, self.session, self.off = writer, session, off
        self.phase = "opening"
        self.lanes = [Lane() for _ in range(segments)]
        self.held: Times = NONE
        self.wrote: set[Time] = set()
        """The times at which it, or the session that it continues, appended: its moves declare these whole."""
        self.sent: set[tuple[Time, int, int]] = set()
        """(time, segment, record) of each append."""
        self.aborted: set[Time] = set()
        """The times that it knows to be aborted; the application does not declare these whole."""

    # ---- what the application does; each returns the epochs that it declares whole ----

    @property
    def settled(self) -> bool:
        """Whether a move may be sent: no append is unacknowledged (E1)."""
        return Clause.MOVES_WAIT in self.off or not any(m.kind == "append" for lane in self.lanes for m in lane.queue)

    def append(self, segment: int, time: Time, record: int) -> bool:
        if self.phase != "open" or time not in self.held or time in self.aborted:
            return False
        self.lanes[segment].queue.append(Message("append", time, record))
        self.wrote.add(time)
        self.sent.add((time, segment, record))
        return True

    def move(self, held: Times) -> Times | None:
        """Hold `held` from now on; None if that cannot be requested now."""
        if self.phase != "open" or not held < self.held or not self.settled:
            return None
        whole = (frozenset(self.wrote) - self.aborted) & (self.held - held)
        self.held = held
        self._say(Message("hold", held=held))
        return whole

    def leave(self, how: str) -> Times | None:
        if self.phase != "open" or not (self.settled or how == "abort"):
            return None
        self.phase = "leaving"
        self._say(Message("leave", how=how))
        return NONE if how == "abort" else (frozenset(self.wrote) - self.aborted) & self.held

    def abort(self, time: Time) -> bool:
        if self.phase != "open" or time not in self.held or time in self.aborted or not self.settled:
            return False
        self.aborted.add(time)
        self._say(Message("abort", time))
        return True

    def _say(self, message: Message) -> None:
        for lane in self.lanes:
            lane.queue.append(message)

    # ---- what the network does ----

    def deliver(self, segment: int, publisher: Publisher, *, heard: bool) -> bool:
        """The next message reaches the publisher of `segment`, and its answer this session, if `heard`."""
        lane = self.lanes[segment]
        if self.phase == "over" or lane.left or publisher.stopping:
            return False
        if lane.incarnation != publisher.incarnation:
            resume = Resume(lane.held, frozenset(lane.touched)) if lane.ever_opened else None
            opened = publisher.open(self.writer, self.session, resume)
            if heard:
                self._opened(lane, publisher.incarnation, opened)
            return True
        if not lane.queue:
            return False
        message = lane.queue[0]
        answer = self._handle(publisher, message)
        if heard and answer != "wait":
            self._answered(lane, message, answer)
        return True

    def _handle(self, publisher: Publisher, message: Message) -> str:
        refused = publisher.refuses(self.writer, self.session)
        if refused:
            # A leave whose answer was lost has taken effect: there is nothing to repair.
            return "ok" if message.kind == "leave" and refused == "lost" else refused
        match message.kind:
            case "append":
                assert message.time is not None
                return publisher.append(self.writer, self.session, message.time, message.record)
            case "hold":
                return publisher.hold(self.writer, message.held)
            case "abort":
                assert message.time is not None
                return publisher.abort(self.writer, message.time)
            case _:
                return publisher.leave(self.writer, message.how)

    def _opened(self, lane: Lane, incarnation: int, opened: Opened | str) -> None:
        if opened == "lost":
            self._lost(lane)
        elif opened in ("fenced", "complete"):
            self.phase = "over"
        elif isinstance(opened, Opened):
            if not lane.ever_opened:
                lane.touched = set(opened.touched)
            lane.incarnation, lane.ever_opened, lane.held = incarnation, True, opened.held
            self.aborted |= opened.lost
            lane.touched -= opened.lost
            self._join()

    def _join(self) -> None:
        """First abort what would stay unfinished, then hold at every segment what all of them can give (E3, E5)."""
        quiet = not any(lane.queue for lane in self.lanes)
        if self.phase == "opening" and all(lane.ever_opened for lane in self.lanes):
            self.held = self.lanes[0].held.intersection(*(lane.held for lane in self.lanes))
            self.wrote = set[Time]().union(*(lane.touched for lane in self.lanes))
            unfinished = sorted(self.wrote - self.held)
            for lane in self.lanes:
                lane.queue.extend(Message("abort", time) for time in unfinished if time in lane.held)
            self.aborted.update(unfinished)
            self.phase = "aborting"
            self._join()
        elif self.phase == "aborting" and quiet:
            for lane in self.lanes:
                if lane.held != self.held:
                    lane.queue.append(Message("hold", held=self.held))
            self.phase = "joining"
            self._join()
        elif self.phase == "joining" and quiet:
            self.phase = "open"

    def _answered(self, lane: Lane, message: Message, answer: str) -> None:
        if answer == "fenced":
            self.phase = "over"
            return
        if answer == "lost":
            self._lost(lane)
            return
        lane.queue.pop(0)
        match message.kind:
            case "append" if answer == "aborted":
                assert message.time is not None
                self.aborted.add(message.time)
            case "append":
                assert message.time is not None
                lane.touched.add(message.time)
            case "hold":
                lane.held &= message.held
                lane.touched &= message.held
            case "abort":
                assert message.time is not None
                lane.touched.discard(message.time)
            case _:
                lane.left = True
                if all(other.left for other in self.lanes):
                    self.phase = "over"
                return
        self._join()

    def _lost(self, lane: Lane) -> None:
        """`WriterLost` at one segment: abort at the others what is open there; the application opens again (E3)."""
        self.phase = "quitting"
        lane.left = True
        for other in self.lanes:
            other.queue.clear()
            if other.ever_opened and Clause.LOST_EVERYWHERE not in self.off:
                other.queue.append(Message("leave", how="abort"))
            else:
                other.left = True
        if all(other.left for other in self.lanes):
            self.phase = "over"
