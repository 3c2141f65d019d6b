"""What a searched reader was given, written as a history, which the checker of the chaos tests judges.

Separate from the reader because the history needs the whole logs. The reader keeps its lines, each with how much of
each log it had taken in by then. The history puts them in an order in which all of it can have happened: what a reader
has taken in comes before its line, and the rest of the logs after its last line. So a line is judged by all that may
still be published, and equal ends are judged once.

The logs are also read by a second reader, who was there from the start and wants all topics. The checker compares both.
"""

from typing import Any, NamedTuple

from tests.chaos.history import Phase
from tests.exploration.connections import FixedLog
from tests.simulation.history import Diary, History
from tests.simulation.order import minimal, reached
from tests.simulation.stories import Topics

from epochal.protocol import messages as m
from epochal.protocol.times import Time

Logs = dict[str, FixedLog]
Parts = tuple[tuple[str, tuple[bytes, ...]], ...]
"""The payloads of an epoch by segment."""


class Line(NamedTuple):
    """What the reader writes down: a method of `Diary`, and what it is called with."""

    cut: tuple[int, ...]
    """How many events of each log it had taken in."""
    does: str
    what: tuple[Any, ...]


class Saved(NamedTuple):
    """What a cursor says: where it goes on, and which aborts it has not reported yet."""

    frontier: tuple[Time, ...]
    untold: tuple[Time, ...]


class End(NamedTuple):
    """What an application has written down by the end of a path, and its cursor there."""

    lines: tuple[Line, ...]
    always: Topics
    """What it has wanted all the time, and could have whole."""
    saved: Saved | None
    """None where it has no cursor."""


class Judge:
    """Has the checker judge what a reader of these logs was given, each distinct end once."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._judged: set[End] = set()

    def judge(self, end: End) -> None:
        """Raise `Violation` for the first thing that the checker finds."""
        if end in self._judged:
            return
        self._written(end).judge()
        self._judged.add(end)

    def _written(self, end: End) -> History:
        history = History(lambda: 0.0)
        diary, witness = Diary(history, "reader"), Diary(history, "logs")
        witness.joins("start", [0])
        diary.joins(None, [0])
        diary.always(end.always)
        taken = dict.fromkeys(self.logs, 0)
        for line in end.lines:
            self._publishes(history, taken, line.cut)
            if line.does == "epoch":
                time, frontier, parts, topics = line.what
                diary.epoch(time, frontier, dict(parts), topics)
            else:
                getattr(diary, line.does)(*line.what)
        if end.saved is not None:
            diary.saves(len(end.lines), *end.saved)
        self._publishes(history, taken, tuple(len(log.events) for log in self.logs.values()))
        self._reads_all(witness)
        return history

    def _publishes(self, history: History, taken: dict[str, int], cut: tuple[int, ...]) -> None:
        """The writer of each segment does what its log has up to there."""
        for (segment, log), count in zip(self.logs.items(), cut, strict=True):
            writer = f"writer of {segment}"
            for event in log.events[taken[segment] : count]:
                match event:
                    case m.Data(seq, _, time, topic):
                        for phase, data in ((Phase.INVOKE, {}), (Phase.OK, {"position": [1, seq]})):
                            history.record(writer, 0, segment, time, topic, event.payload, phase, **data)
                    case m.Aborted():
                        for time in event.times:
                            history.write(writer, 0, "abort", Phase.INVOKE, time=time)
                            history.write(writer, 0, "abort", Phase.OK, time=time)
                    case _:
                        move = history.leave(writer, 0, log.standings[event.seq + 1].lower)
                        history.left(writer, 0, move)
            taken[segment] = max(taken[segment], count)

    def _reads_all(self, witness: Diary) -> None:
        logs = self.logs.values()
        frontier = minimal(time for log in logs for time in log.standings[-1].lower)
        for time in sorted({time for log in logs for time in (*log.data, *log.standings[-1].aborted)}):
            if any(isinstance(event, m.Aborted) and time in event.times for log in logs for event in log.events):
                witness.aborted(time, frontier)
            elif not reached(frontier, time):
                parts = {log.segment: [data.payload for data in log.data.get(time, ())] for log in logs}
                topics = {data.topic for log in logs for data in log.data.get(time, ())}
                witness.epoch(time, frontier, parts, topics)
