"""Epochs from their first batch until the application has them, and the events that are reported one by one.

`SubscriberMachine` decides which epochs are complete or aborted. Here they only wait, in order, and a cursor can be
taken at any moment meanwhile.

Sources: rules S18; E16, E17; F8.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from epochal.errors import EpochTooLarge
from epochal.protocol import messages as m
from epochal.protocol.subscriber.effects import Arrived, EpochBatches, EpochWasAborted, Happened
from epochal.protocol.subscriber.epoch_state import BATCH_OVERHEAD, OpenEpoch
from epochal.protocol.times import Time
from epochal.protocol.topics.filter import TopicFilter


class _Passed(NamedTuple):
    """Marks, in the queue of events, the end of a complete epoch: it comes after its last event."""

    time: Time


class EpochQueue:
    """Two queues, of epochs and of events; both are fed until the machine says which one is read.

    Without `holds` whole epochs are not kept at all. An epoch is *yielded* when the application has it, or the last
    event of it: not when it is handed out, since a call that hands it out can be interrupted.
    """

    __slots__ = (
        "_events",
        "_in_hand",
        "_max_buffer",
        "_queued_aborts",
        "_ready",
        "buffered_bytes",
        "complete",
        "holds",
        "open",
        "reports",
        "waiting_bytes",
    )

    def __init__(self, max_buffer_bytes: int, *, holds: bool) -> None:
        self._max_buffer = max_buffer_bytes
        self.holds = holds
        """Whether whole epochs are kept for `hand_out_epoch`."""
        self.reports = True
        """Whether events are kept for `hand_out_event`."""
        self.open: dict[Time, OpenEpoch] = {}
        """Epochs with data that can still grow or be aborted."""
        self.complete: dict[Time, OpenEpoch] = {}
        """Epochs with data that are complete and not yielded, in the order in which they are handed out."""
        self._ready: deque[EpochBatches | EpochWasAborted] = deque()
        """What `hand_out_epoch` has still to hand out."""
        self._queued_aborts: set[Time] = set()
        """The aborted times in `_ready`, and those that were handed out and are not yielded."""
        self._events: deque[Happened | _Passed] = deque()
        """What `hand_out_event` has still to hand out."""
        self._in_hand: dict[int, Happened | _Passed] = {}
        """By identity, in order: events handed out and not passed, and the ends of epochs that wait for these."""
        self.buffered_bytes = 0
        """Bytes of batches held: of incomplete epochs, and of complete ones not yet taken."""
        self.waiting_bytes = 0
        """Bytes that wait for the application alone: complete epochs and events not yet taken."""

    # ---- for the application ----

    @property
    def waits(self) -> bool:
        """Whether anything waits for the application."""
        return bool(self._ready or self._events)

    @property
    def waiting_epochs(self) -> int:
        """How many complete or aborted epochs wait for the application."""
        return len(self._ready)

    def only_events(self) -> None:
        """From now on only events are handed out: nothing is held back, and nothing held."""
        self.holds = False
        self._ready.clear()
        self.waiting_bytes -= sum(epoch.bytes for epoch in self.complete.values())
        self.buffered_bytes = 0
        for epoch in (*self.open.values(), *self.complete.values()):
            epoch.batches.clear()
            epoch.bytes = 0
        self._events.extend(map(_Passed, self.complete))
        self._pass()

    def hand_out_epoch(self) -> EpochBatches | EpochWasAborted | None:
        """The next complete or aborted epoch; None if there is none now. It is handed out once, and not yielded yet."""
        if not self._ready:
            return None
        epoch = self._ready.popleft()
        taken = self.complete.get(epoch.time)
        if taken is not None:
            self.buffered_bytes -= taken.bytes
            self.waiting_bytes -= taken.bytes
        return epoch

    def pass_epoch(self, epoch: EpochBatches | EpochWasAborted) -> None:
        """The application has an epoch that was handed out: it is yielded."""
        self._queued_aborts.discard(epoch.time)
        self.complete.pop(epoch.time, None)

    def hand_out_event(self) -> Happened | None:
        """The next event as it came; None if there is none now. It is handed out once, and not passed yet."""
        if not self._events:
            return None
        event = self._events.popleft()
        if isinstance(event, _Passed):  # never: none is left at the head
            return self.hand_out_event()
        self._in_hand[id(event)] = event
        while self._events and type(passed := self._events[0]) is _Passed:
            self._in_hand[id(passed)] = self._events.popleft()
        self.waiting_bytes -= _weight(event)
        return event

    def pass_event(self, event: Happened) -> None:
        """The application has an event that was handed out."""
        del self._in_hand[id(event)]
        if self._in_hand:
            self._pass()

    def _pass(self) -> None:
        """An epoch is yielded with the last event of it; until then a cursor stays before it (E16).

        Ends at the head of the queue have no event before them left to hand out. They go behind what is in hand, and an
        end that comes first there has its last event passed: so an epoch is yielded exactly when all before it is.
        """
        while self._events and isinstance(passed := self._events[0], _Passed):
            self._in_hand[id(passed)] = self._events.popleft()
        while self._in_hand and isinstance(passed := next(iter(self._in_hand.values())), _Passed):
            del self._in_hand[id(passed)]
            self.complete.pop(passed.time, None)

    # ---- from the machine ----

    def report(self, what: Happened) -> None:
        """Something has happened that whoever reads events is to know."""
        if self.reports:
            self._events.append(what)
            self.waiting_bytes += _weight(what)

    def add(self, segment: str, data: m.Data, epoch: OpenEpoch) -> None:
        """A batch belongs to what the application is given. Raises `EpochTooLarge`."""
        if self.holds:
            size = BATCH_OVERHEAD + len(data.payload)
            epoch.batches.append((segment, data))
            epoch.bytes += size
            self.buffered_bytes += size
            self._check_buffer()
        if self.reports:
            self.report(Arrived(segment, data))

    def _check_buffer(self) -> None:
        if self.buffered_bytes > self._max_buffer:
            incomplete = sum(epoch.bytes for epoch in self.open.values())
            if incomplete > self._max_buffer:
                raise EpochTooLarge(
                    f"{len(self.open)} epochs that are not complete hold {incomplete} bytes, more than "
                    "max_buffer_bytes "
                    f"({self._max_buffer}); raise it, publish smaller epochs, or read events() instead of epochs()"
                )

    def finish(self, time: Time) -> bool:
        """No segment can add to the epoch `time` any more; returns whether the application is given it."""
        epoch = self.open.pop(time, None)
        if epoch is not None and epoch.batches:
            self.complete[time] = epoch
            self.waiting_bytes += epoch.bytes
            self._ready.append(EpochBatches(time, tuple(epoch.batches)))
            return True
        if epoch is not None and self.reports and not self.holds:
            self.complete[time] = epoch
            self._events.append(_Passed(time))
            self._pass()
            return True
        return False

    def finish_aborted(self, time: Time, *, report: bool) -> None:
        """An aborted time cannot arrive any more; `report`: the application does not know of its abort."""
        self.open.pop(time, None)
        if self.complete:
            # A cursor that stays before this epoch lets the log be read again from there, and with it the aborted one.
            next(reversed(self.complete.values())).aborted.append(time)
        if self.holds and report and time not in self._queued_aborts:
            self._queued_aborts.add(time)
            self._ready.append(EpochWasAborted(time))

    def drop(self, time: Time) -> None:
        """What came of the epoch `time` is not delivered: it was aborted."""
        epoch = self.open.pop(time, None)
        if epoch is not None:
            self.buffered_bytes -= epoch.bytes

    def keep_topics(self, topics: TopicFilter) -> None:
        """Drop all batches of other topics that were not handed out (F8)."""
        for epoch in self.open.values():
            self.buffered_bytes -= epoch.keep(topics)
        complete, self._ready = self._ready, deque()
        for item in complete:
            if isinstance(item, EpochWasAborted):
                self._ready.append(item)
                continue
            epoch = self.complete[item.time]
            size = epoch.keep(topics)
            self.buffered_bytes -= size
            self.waiting_bytes -= size
            if epoch.batches:
                self._ready.append(EpochBatches(item.time, tuple(epoch.batches)))
            else:
                self._forget(item.time)
        unwanted = [each for each in self._events if type(each) is Arrived and not topics.wants(each.data.topic)]
        self.waiting_bytes -= sum(map(_weight, unwanted))
        gone = set(map(id, unwanted))
        self._events = deque(each for each in self._events if id(each) not in gone)
        self._pass()

    def _forget(self, time: Time) -> None:
        """A complete epoch is not handed out after all; what is remembered with it goes to the one before it."""
        times = list(self.complete)
        at = times.index(time)
        epoch = self.complete.pop(time)
        if at:
            self.complete[times[at - 1]].aborted += epoch.aborted

    # ---- for cursors ----

    @property
    def unyielded(self) -> list[tuple[Time, OpenEpoch]]:
        """All epochs with data that the application does not have: a cursor is before each of them."""
        return [*self.open.items(), *self.complete.items()]

    def aborted_meanwhile(self) -> Iterable[Time]:
        """Aborted times that became past while a complete epoch waited."""
        return [time for epoch in self.complete.values() for time in epoch.aborted]


def _weight(event: Happened) -> int:
    return BATCH_OVERHEAD + (len(event.data.payload) if type(event) is Arrived else 0)
