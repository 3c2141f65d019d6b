"""A subscriber of any number of segments: merged progress, whole epochs, and what is reported to the application.

A machine without I/O. One `Follower` for each segment feeds it. It holds what arrives until every segment has begun,
admits epochs that it can see whole, and hands out each of them once, when no segment can add to it any more.

Why an epoch is handed out whole: the merged frontier holds the minimal times that any segment can still send. A time
that it does not reach cannot come any more, so all its batches are here, if none was published before the joins. The
filters of the joins see to that: each admits only times of which its segment had published nothing. Why it is handed
out once: the frontier of a segment that begins again is joined with what it was before (its `floor`). So the merged
frontier never goes back, and a time that it has left is never wanted again.

Sources: Strymon's publish-subscribe protocol (subscriber logic), rules S10-S19, S33; E15-E18; F7-F9.
"""

from collections.abc import Callable, Iterable

from epochal.errors import CursorError, EpochTooLarge, RemoteProtocolError, TimeShapeError
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain, Change, MutableAntichain, joint
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.cursor import Cursor, carried, digest
from epochal.protocol.subscriber.effects import (
    Began,
    EpochBatches,
    EpochWasAborted,
    FrontierMoved,
    GapFound,
    Happened,
    Moved,
    Rejoined,
    RewoundTo,
    SegmentCameUp,
    SegmentWentDown,
)
from epochal.protocol.subscriber.epoch_queue import EpochQueue
from epochal.protocol.subscriber.epoch_state import BATCH_OVERHEAD, FollowedSegment, OpenEpoch
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.subscriber.known_aborts import KnownAborts
from epochal.protocol.subscriber.seen_whole import SeenWhole
from epochal.protocol.subscriber.widening import WantedTopics, widened
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter


class SubscriberMachine:
    """Merges the segments of one stream.

    Both `next_epoch` and `next_event` have something to return until `only_epochs` or `only_events` says which one is
    read. With `partial` epochs that were under way at a join are delivered as well, by `next_event` only (S15b). From a
    `cursor` it resumes: all that was not yielded comes again, whole. With `wanted` only epochs that one of these times
    reaches are delivered (E20). `topics` are delivered, None for all; after a `change` the caller passes them on to the
    followers.
    """

    def __init__(
        self,
        stream: str,
        shape: TimeShape,
        segments: Iterable[str],
        *,
        partial: bool = False,
        max_buffer_bytes: int = 256 * 2**20,
        cursor: Cursor | None = None,
        wanted: Iterable[Time] | None = None,
        topics: TopicFilter | None = None,
    ) -> None:
        self.stream = stream
        self.shape = shape
        self._partial = partial
        """Whether also epochs are delivered that were under way at a join (S15b)."""
        self._max_buffer = max_buffer_bytes
        self._segments = {segment: FollowedSegment() for segment in segments}
        self._topics = WantedTopics(topics, self._segments)
        self._queue = EpochQueue(max_buffer_bytes, holds=not partial)
        self._aborts = KnownAborts()
        self._seen = SeenWhole(shape)
        self._merged = MutableAntichain()
        """The lower frontiers of all segments together."""
        self._unjudged_bytes = 0
        """Bytes that wait for every segment to begin."""
        self._resumed = cursor
        self.ready = False
        """Whether every segment has begun; the first event comes after that (S17)."""
        self._reached = None if wanted is None else Antichain(wanted)
        if self._reached is not None:
            self.restrict(JoinFilter(self._reached))
        if cursor is not None:
            try:
                seen_from = cursor.frontier if cursor.seen_from is None else cursor.seen_from
                # By `map`: a loop of compiled code takes times only, and a cursor made by hand may have something else.
                list(map(shape.check, (*cursor.frontier, *seen_from, *cursor.aborted, *cursor.unreported_aborts)))
                for new in cursor.new_topics:
                    list(map(shape.check, new.whole_from or ()))
            except TimeShapeError as error:
                raise CursorError(f"the cursor does not fit the stream: {error}") from None
            self.restrict(JoinFilter(seen_from, (), cursor.aborted))
            self._aborts.know(cursor.unreported_aborts)
            self._aborts.unreported.update(cursor.unreported_aborts)
            for segment in self._segments.values():
                segment.floor = Antichain(cursor.frontier)
            self._resume_topics(cursor)

    def _resume_topics(self, cursor: Cursor) -> None:
        """Keep what the cursor says of new topics. Any other topic is judged by where each segment begins (F9)."""
        wanted, then = self._topics.filter, cursor.topics
        if isinstance(then, str):
            if wanted is None or digest(wanted) != then:
                raise CursorError(
                    "the cursor is of a subscription to so many topics that it holds only a digest of them, and that"
                    " is of others than these: resume with the same topics and reject, and change them afterwards"
                )
            then = wanted
        if self._partial or (then is None and not cursor.new_topics):
            return
        kept = EVERYTHING if then is None else then
        for known in cursor.new_topics:
            new = (EVERYTHING if then is None else then).without(known.kept)
            if known.whole_from is None:
                kept = kept.without(new)
            elif widened(EVERYTHING.without(new), wanted):
                self._topics.resume(new, known.whole_from)
                self._seen.seen_from = joint([self._seen.seen_from, Antichain(known.whole_from)])
        if widened(kept, wanted):
            self._widen(kept if wanted is None else kept.intersection(wanted))

    # ---- for the application ----

    @property
    def frontier(self) -> Antichain:
        """The merged lower frontier: every time that can still arrive is reached by it. Meaningful once `ready`."""
        return self._merged.frontier

    @property
    def complete(self) -> bool:
        """Whether nothing can arrive any more."""
        return self.ready and not len(self._merged.frontier)

    @property
    def nothing_whole(self) -> bool:
        """Whether no epoch was whole, and a segment was complete where it began: what it held is gone."""
        return not self._partial and self.complete and any(each.began_complete for each in self._segments.values())

    @property
    def waiting_epochs(self) -> int:
        """How many complete or aborted epochs wait for the application."""
        return self._queue.waiting_epochs

    @property
    def waits(self) -> bool:
        """Whether anything waits for the application."""
        return self._queue.waits

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the application alone: complete epochs and events not yet taken.

        The shell stops reading above its bound.
        """
        return self._queue.waiting_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches held: of incomplete epochs, and of complete ones not yet taken."""
        return self._queue.buffered_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of all batches that it holds, whatever for."""
        return self._queue.buffered_bytes + self._unjudged_bytes

    def only_epochs(self) -> None:
        """From now on only `next_epoch` is read."""
        self._queue.reports = False
        while self.next_event() is not None:
            pass

    def only_events(self) -> None:
        """From now on only `next_event` is read: nothing is held back, and nothing held."""
        self._queue.only_events()

    def next_epoch(self) -> EpochBatches | EpochWasAborted | None:
        """The next complete or aborted epoch, in a linear extension of time.

        None when there is none now. Taking it yields it (E16).
        """
        epoch = self.hand_out_epoch()
        if epoch is not None:
            self.pass_epoch(epoch)
        return epoch

    def hand_out_epoch(self) -> EpochBatches | EpochWasAborted | None:
        """The same, not yielded yet: a cursor stays before it until `pass_epoch` (E16). It is handed out once."""
        return self._queue.hand_out_epoch()

    def pass_epoch(self, epoch: EpochBatches | EpochWasAborted) -> None:
        """The application has an epoch that was handed out: it is yielded."""
        self._aborts.unreported.discard(epoch.time)
        self._queue.pass_epoch(epoch)

    def next_event(self) -> Happened | None:
        """The next event as it came; None when there is none now. Taking it yields it."""
        event = self.hand_out_event()
        if event is not None:
            self.pass_event(event)
        return event

    def hand_out_event(self) -> Happened | None:
        """The same, not yielded yet: a cursor stays before its epoch until `pass_event`. It is handed out once."""
        return self._queue.hand_out_event()

    def pass_event(self, event: Happened) -> None:
        """The application has an event that was handed out."""
        self._queue.pass_event(event)
        if type(event) is EpochWasAborted and not self._queue.holds:
            self._aborts.unreported.discard(event.time)

    # ---- topics ----

    @property
    def topics(self) -> TopicFilter | None:
        """The topics that are wanted; None for all."""
        return self._topics.filter

    @property
    def widening(self) -> bool:
        """Whether a segment has not reported yet where new topics begin."""
        return self._topics.pending is not None

    def change(self, topics: TopicFilter | None) -> bool:
        """Want other topics; returns whether some are new, so that followers must join again for them (F8).

        Removed topics leave the epochs that were not handed out. If they are wanted again later, they are new.
        """
        before = self._topics.filter
        kept = EVERYTHING if before is None else before
        given_up = self._topics.give_up()
        if given_up is not None:  # topics that it would have brought were never seen whole, so they are new again
            kept, self._seen.seen_from = kept.intersection(given_up.before), given_up.seen_from
            self._unjudged_bytes -= given_up.held_bytes
        self._topics.filter = topics
        if topics is not None:
            kept = kept.intersection(topics)
            self._queue.keep_topics(topics)
        widens = widened(kept, topics)
        if widens and not self._partial:
            self._widen(kept)
        return widens

    def _widen(self, before: TopicFilter) -> None:
        self._topics.widen(before, self._seen.seen_from)
        self._remember_what_was_seen()
        self._seen.seen_from = Antichain()  # no epoch is seen whole until every segment has reported (E18)

    def _remember_what_was_seen(self) -> None:
        """Call this before `seen_from` changes: of past times it is settled whether they were seen whole."""
        if self.ready:
            self._seen.remember(self._merged.frontier)

    def rejoined(self, name: str, rejoined: Rejoined) -> None:
        """The follower of `name` has changed its channel after `rejoined.state` (F8)."""
        self._topics_begin(name, rejoined.state, rejoined.topics)

    def reached(self, name: str, seq: int) -> None:
        """The follower of `name` has all that there is for it up to event `seq` (F7)."""
        segment = self._segments[name]
        segment.seq = max(segment.seq, seq)

    def whole_from(self) -> Antichain:
        """Epochs that this reaches are delivered whole, with all topics. Not to be asked while `widening`."""
        return self._merged.frontier.join(self._seen.seen_from)

    def _topics_begin(self, name: str, state: SegmentState, topics: TopicFilter | None) -> None:
        widening = self._topics.begin(name, state, topics)
        if widening is None:
            return
        self._seen.seen_from = widening.frontier(self.shape)
        self._unjudged_bytes -= widening.held_bytes
        held, widening.held = widening.held, []
        late: dict[Time, OpenEpoch] = {}
        for segment, data in held:
            epoch = self._queue.open.get(data.time)
            if epoch is not None and self._topics.admits(segment, data):
                late[data.time] = epoch
                self._queue.add(segment, data, epoch)
        for epoch in late.values():  # held batches are older than those of the same segment that are there already
            epoch.batches.sort(key=lambda batch: (batch[0], batch[1].seq))

    def saw_whole(self, time: Time) -> bool:
        """Whether the epoch `time` is complete, and was delivered if it had any data (E18)."""
        if not self.ready or self._merged.less_equal(time) or self._aborts.remembers(time):
            return False
        return self._seen.saw_whole(time)

    def cursor(self) -> Cursor:
        """Where to resume so that everything not yet yielded comes again, whole, and nothing else (E16).

        Before `ready` that is where this subscriber itself resumed; raises `CursorError` if it did not resume.
        """
        if not self.ready:
            if self._resumed is None:
                raise CursorError("there is no cursor before every segment has answered the join; wait for that")
            return self._resumed
        unyielded = self._queue.unyielded
        # Just before the first event of any epoch that is not yielded, so that it is read again from its beginning. Its
        # time is in the frontier too, so it is delivered again; epochs that the frontier does not reach are skipped.
        positions = {}
        for name, segment in self._segments.items():
            before = [epoch.before[name] for _, epoch in unyielded if name in epoch.before]
            positions[name] = min([m.Position(segment.incarnation, segment.seq), *before])
        frontier = Antichain([*self._merged.frontier, *(time for time, _ in unyielded)])
        seen_from = self._seen.frontier(frontier)
        topics = self._topics.filter
        over = self._aborts.active.union(self._queue.aborted_meanwhile()) - self._aborts.unreported
        aborted = sorted(time for time in over if frontier.less_equal(time))
        return Cursor(
            self.stream,
            positions,
            tuple(frontier),
            tuple(aborted),
            tuple(sorted(self._aborts.unreported)),
            None if seen_from == frontier else tuple(seen_from),
            None if topics is None else carried(topics),
            self._topics.new(self.shape),
        )

    def position(self, segment: str) -> m.Position:
        """The last event of `segment` that arrived; a new follower goes on after it."""
        known = self._segments[segment]
        return m.Position(known.incarnation, known.seq)

    def restrict(self, only: JoinFilter) -> None:
        """Deliver only what `only` admits, also where the snapshots admit more (S15a)."""
        self._see_only(only)
        self._seen.add(only)

    # ---- from the followers ----

    def down(self, name: str, reason: str) -> None:
        """The connection to segment `name` is lost. The merged frontier waits for it (S19)."""
        segment = self._segments[name]
        if not segment.down:
            segment.down = True
            self._queue.report(SegmentWentDown(name, reason))

    def up(self, name: str) -> None:
        """Segment `name` is followed, for the first time or again."""
        segment = self._segments[name]
        if segment.down:
            segment.down = False
            self._queue.report(SegmentCameUp(name))

    def began(self, name: str, began: Began) -> None:
        """A follower of `name` begins (again) after `began.state`."""
        segment = self._segments[name]
        again = segment.began
        if again and self.ready and began.incarnation > segment.incarnation:  # nothing is handed out before `ready`
            self._queue.report(RewoundTo(name, began.incarnation, began.state.seq))
        if not self._partial:
            self._topics_begin(name, began.state, began.topics)
        if again and began.resumed and not began.gap:
            segment.incarnation = began.incarnation
            if began.state.seq < segment.seq:
                self._rewind(name, segment, began.state.seq)
            return
        segment.began, segment.incarnation, segment.seq = True, began.incarnation, began.state.seq
        if not self.ready:
            segment.began_at, segment.began_complete = began.state.seq, not began.state.lower
        if again:
            segment.floor = segment.joined()  # what it had completed stays complete, so the frontier never goes back
        segment.lower = MutableAntichain(began.state.lower)
        self._keep_waiting(segment, lambda event: False)
        if began.state.below:
            self._aborts.lose(began.state.lower, began.state.below)
        seen = JoinFilter(began.state.lower, began.state.active, began.state.aborted)
        if self._partial:
            self._see_only(seen)  # epochs under way are delivered, but not seen whole
        elif began.filters:
            self.restrict(seen)
        else:
            self._aborts.know(began.state.aborted)
        if self._reached is not None and not again:  # they were asked for; their aborts may be older than the history
            self._aborts.unreported.update(filter(self._reached.less_equal, began.state.aborted))
        if began.gap:
            self._gap(name, began)
        if not self.ready:
            self._begin_when_all_have()
        else:
            self._advance(segment)

    def _rewind(self, name: str, segment: FollowedSegment, seq: int) -> None:
        """The last incarnation lost all events after `seq`: epochs with data of these are aborted (E10 durability).

        Publishers store frontier changes and aborts before they push them, so only data can be lost.
        """
        segment.seq = seq
        self._keep_waiting(segment, lambda event: event.seq <= seq)
        for time in sorted(time for time, epoch in self._queue.open.items() if epoch.last.get(name, seq) > seq):
            self._drop_epoch(time, report=True)

    def _begin_when_all_have(self) -> None:
        if not all(segment.began for segment in self._segments.values()):
            return
        self.ready = True
        self._aborts.unreported.update(filter(self._seen.admits, self._aborts.torn))
        self._aborts.torn.clear()
        # Torn epochs, and those of the cursor: the events that abort these may be before its positions.
        for time in sorted(self._aborts.unreported):
            self._queue.report(EpochWasAborted(time))
        # All at once: the frontier of some segments alone would prune filters that the other segments still need.
        self._advance(*self._segments.values())
        self._complete()  # also if nothing moved: at the end of the stream, a cursor's aborts may be left to report
        for name, segment in self._segments.items():
            waiting, segment.waiting = segment.waiting, []
            reached = segment.seq
            for event in waiting:
                self._take_in(name, segment, event)
            segment.seq = reached  # which may be after the last of them (F10)

    def event(self, name: str, event: m.Event | Moved) -> None:
        """The next event of segment `name`, directly after the last; or a `Moved` in place of events that are gone."""
        segment = self._segments[name]
        if type(event) is Moved and m.NOTHING_YET < segment.seq == segment.began_at and not event.lower:
            segment.began_complete = True
        if self.ready:
            self._take_in(name, segment, event)
        else:
            segment.seq = event.seq
            segment.waiting.append(event)
            self._count_unjudged(_size(event))

    def _count_unjudged(self, size: int) -> None:
        self._unjudged_bytes += size
        if self._unjudged_bytes > self._max_buffer:
            raise EpochTooLarge(
                f"{self._unjudged_bytes} bytes arrived while some segments had not answered the join yet, more "
                f"than max_buffer_bytes ({self._max_buffer}); raise it, or see that every segment has a publisher"
            )

    def _take_in(self, name: str, segment: FollowedSegment, event: m.Event | Moved) -> None:
        segment.seq = event.seq
        if type(event) is m.Data:
            self._data(name, segment, event)
        elif type(event) is m.Frontier:
            self._move(name, segment, event.changes)
        elif type(event) is m.Aborted:
            self._abort(event.times)
        elif type(event) is Moved:
            self._move(name, segment, Antichain(event.lower).changes_from(segment.lower.frontier))

    def _move(self, name: str, segment: FollowedSegment, changes: Iterable[Change]) -> None:
        before = segment.lower.frontier
        visible = segment.lower.update(changes)
        if not all(before.less_equal(time) for time, change in visible if change > 0):
            # If this were accepted, an epoch that was handed out could be handed out again (invariant I6).
            raise RemoteProtocolError(f"segment {name}: event {segment.seq} moves the frontier back")
        if visible:
            self._advance(segment)

    # ---- data ----

    def _data(self, name: str, segment: FollowedSegment, data: m.Data) -> None:
        time = data.time
        if segment.floor is not None and not segment.floor.less_equal(time):
            return  # the segment had completed this time before it began again: its batches were here already (E17)
        epoch = self._queue.open.get(time)
        if epoch is None:
            self.shape.check(time)
            if not self._wanted(time):
                self._report_if_lost(time)
                return
            epoch = self._queue.open[time] = OpenEpoch()
        epoch.before.setdefault(name, m.Position(segment.incarnation, data.seq - 1))
        epoch.last[name] = data.seq
        admitted = self._topics.admits(name, data)
        if admitted:
            self._queue.add(name, data, epoch)
        elif admitted is None:
            self._count_unjudged(_size(data))

    def _wanted(self, time: Time) -> bool:
        """Whether data at `time` may be delivered: it can still come, was not aborted, and is seen whole."""
        if not self._merged.less_equal(time) or time in self._aborts.active or self._aborts.is_lost(time):
            return False
        return self._seen.admits(time)

    def _report_if_lost(self, time: Time) -> None:
        """Report the abort of `time` if a lost memory covers it: the log may have no event that does."""
        if self._aborts.is_lost(time) and time not in self._aborts.active and self._merged.less_equal(time):
            self._drop_epoch(time, report=self._asked_for(time))

    def _asked_for(self, time: Time) -> bool:
        return self._reached is None or self._reached.less_equal(time)

    def _keep_waiting(self, segment: FollowedSegment, kept: Callable[[m.Event | Moved], bool]) -> None:
        """Drop events that wait for the other segments to begin, except those that `kept` returns true for.

        Epochs that lose data by this are not seen whole (E17). Only those that this subscriber would have delivered are
        reported. Which ones these are is known when every segment has begun, or at once from a cursor.
        """
        torn = {event.time for event in segment.waiting if type(event) is m.Data and not kept(event)}
        for time in torn:
            self.shape.check(time)
        self._aborts.know(sorted(torn))
        if self._resumed is None:
            self._aborts.torn |= torn
        else:
            self._aborts.unreported.update(filter(self._seen.admits, torn))
        segment.waiting = list(filter(kept, segment.waiting))
        waiting = sum(_size(event) for one in self._segments.values() for event in one.waiting)
        self._unjudged_bytes = waiting + self._topics.held_bytes

    # ---- progress ----

    def _advance(self, *segments: FollowedSegment) -> None:
        """Replace these segments' part of the merged frontier, and hand out what that completes."""
        if not self.ready:
            return
        changes: list[Change] = []
        for segment in segments:
            reach = tuple(segment.joined())
            changes += [(time, 1) for time in reach]
            changes += [(time, -1) for time in segment.reach]
            segment.reach = reach
        moved = self._merged.update(changes)
        self._queue.report(FrontierMoved(tuple(self._merged.frontier)))
        if moved:
            self._complete()

    def _complete(self) -> None:
        """Hand out the epochs that the merged frontier does not reach, and forget what only they needed.

        Sorted: a time that is less than another in the partial order comes before it in this total order, so an epoch
        never comes before one that precedes it.
        """
        merged = self._merged
        over = sorted(t for t in {*self._queue.open, *self._aborts.active} if not merged.less_equal(t))
        for time in over:
            if time in self._aborts.active:
                self._aborts.active.discard(time)
                self._queue.finish_aborted(time, report=time in self._aborts.unreported)
            elif self._queue.finish(time):
                self._was_whole()
        self._seen.prune(merged.frontier)
        if self._topics.widenings:  # a resume goes back to epochs that are not yielded, and reaches more from there
            self._topics.prune(Antichain([*merged.frontier, *(time for time, _ in self._queue.unyielded)]))
        self._aborts.prune(merged)

    def _was_whole(self) -> None:
        """An epoch was whole: the application has got something of the stream."""
        for segment in self._segments.values():
            segment.began_complete = False

    def _abort(self, times: Iterable[Time]) -> None:
        for time in times:
            if time in self._aborts.active or not self._merged.less_equal(time):
                continue
            lost_ahead = self._aborts.is_lost(time) and self._asked_for(time)  # it may have begun after the join
            self._drop_epoch(time, report=lost_ahead or self._seen.admits(time))

    def _drop_epoch(self, time: Time, *, report: bool) -> None:
        self._queue.drop(time)
        self._aborts.know((time,))
        if report:
            self._aborts.unreported.add(time)
            self._queue.report(EpochWasAborted(time))

    def _gap(self, name: str, began: Began) -> None:
        self._queue.report(GapFound(name, began.incarnation, began.state.seq, began.state.below))
        for time in sorted(self._queue.open):
            self._drop_epoch(time, report=True)

    def _see_only(self, admitted: JoinFilter) -> None:
        """Something may be missing of epochs that are not admitted, whether they are delivered or not (E18)."""
        self._remember_what_was_seen()
        seen = admitted.frontier(self.shape)
        self._seen.seen_from = self._seen.seen_from.join(seen)
        if (widening := self._topics.pending) is not None:
            widening.seen_from = widening.seen_from.join(seen)
        self._aborts.know(admitted.aborted)


def _size(event: m.Event | Moved) -> int:
    return BATCH_OVERHEAD + (len(event.payload) if type(event) is m.Data else 0)
