"""What the last incarnation may have had when no one recorded it: its known writers report it when they come back.

The catalog then has a frontier of the segment but no horizon: the last incarnation had a log that is gone, or was of a
version that recorded none. Nothing is served and no writer is admitted until all known writers have requested to open
or have timed out. Then every time at which one of them may have appended is aborted.

Sources: rule E11.
"""

from collections.abc import Collection, Iterable

from epochal.protocol import messages as m
from epochal.protocol.frontier import Downset
from epochal.protocol.publisher.event_log import EventLog


class LostHorizon:
    """Whether the horizon of the last incarnation is unknown, and what is known of it so far."""

    def __init__(self, log: EventLog, *, pending: bool) -> None:
        self._log = log
        self.pending = pending
        """Whether the publisher still waits for the known writers."""
        self.times: Downset | None = None
        """What may be lost; it has to be recorded. None until all known writers have asked to open or timed out."""

    def learn(self, opens: Iterable[m.Open], awaited: Collection[str], *, overdue: bool) -> bool:
        """Take what may be lost from the opens of returning writers; returns whether that is known since this call.

        `overdue`: the writers that are still `awaited` have timed out. A writer may have appended at every time that it
        no longer holds, and at the touched times that it still holds.
        """
        opens = list(opens)
        heard_all = overdue or not set(awaited) - {ask.writer for ask in opens}
        if self.times is not None or not heard_all:
            return False
        log = self._log
        lost = Downset()
        for resume in [ask.resume for ask in opens if ask.resume is not None]:
            for time in (*log.settings.shape.not_reached(resume.held), *resume.touched):
                lost.insert(time)
        lost.drop_passed(log.progress.lower.frontier)
        if log.horizon is not None:
            for time in lost:
                log.horizon.want(time)
        self.times = lost
        return True

    def begin(self, incarnation: int) -> bool:
        """Begin the log once all that may be lost is recorded, and abort it. Returns whether it began.

        A complete stream needs no record: this incarnation starts after every time, and so will the next one. What
        writers that have left had appended in the last incarnation is not known, so none of it may count as whole.
        """
        log, lost, complete = self._log, self.times, self._log.completion.complete
        recorded = None if log.horizon is None or complete else log.horizon.recorded
        if lost is None or not (recorded is None or all(time in recorded for time in lost)):
            return False
        self.pending = False
        lower = () if complete else tuple(log.progress.lower.frontier)
        log.begin_again(lower, () if complete else lost if recorded is None else recorded, incarnation)
        return True
