"""What a subscriber may deliver when segments join, restart and are resumed at different moments; each broke once."""

import pytest

from epochal.errors import CursorError, TimeShapeError
from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import Arrived, Began, EpochBatches, EpochWasAborted, Happened
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.times import Time, TimeShape

INT = TimeShape.parse("int")
PAIR = TimeShape.parse("(int, int)")


def subscriber(cursor: Cursor | None = None) -> SubscriberMachine:
    return SubscriberMachine("uid", INT, ["a", "b"], cursor=cursor)


def joins(
    sub: SubscriberMachine,
    segment: str,
    lower: list[Time],
    upper: list[Time] | None = None,
    *,
    seq: int = -1,
    incarnation: int = 1,
    gap: bool = False,
    filters: bool = True,
) -> None:
    state = SegmentState(seq, tuple(lower), tuple(upper or ()), ())
    sub.began(segment, Began(incarnation, state, filters, gap, False))


def data(seq: int, time: Time, payload: bytes = b"x") -> m.Data:
    return m.Data(seq, seq - 1, time, b"", 1, 0, payload)


def moved(seq: int, old: Time, new: Time | None) -> m.Frontier:
    changes = ((old, -1),) if new is None else ((old, -1), (new, 1))
    return m.Frontier(seq, seq - 1, changes)


def epochs(sub: SubscriberMachine) -> list[EpochBatches | EpochWasAborted]:
    taken = []
    while (epoch := sub.next_epoch()) is not None:
        taken.append(epoch)
    return taken


def events(sub: SubscriberMachine) -> list[Happened]:
    """Handed out, and not passed."""
    handed_out: list[Happened] = []
    while (event := sub.hand_out_event()) is not None:
        handed_out.append(event)
    return handed_out


@pytest.mark.rule("S17", "E15")
def test_what_one_segment_has_under_way_is_left_out_though_another_is_ahead() -> None:
    sub = subscriber()
    joins(sub, "a", [5])
    joins(sub, "b", [3], [4])  # half of 4 was sent before; a, which comes first, has passed it already
    sub.event("b", data(0, 4))
    sub.event("b", data(1, 5))
    sub.event("b", moved(2, 3, 9))
    sub.event("a", moved(0, 5, 9))
    assert [epoch.time for epoch in epochs(sub)] == [5]


@pytest.mark.rule("E17", "S33")
def test_a_gap_before_all_segments_have_answered_does_not_empty_the_frontier() -> None:
    sub = subscriber()
    joins(sub, "a", [3])
    joins(sub, "a", [2], incarnation=2, gap=True)
    joins(sub, "b", [7])
    assert not sub.complete
    assert list(sub.frontier) == [3]  # and what a had completed stays so


def rewound(sub: SubscriberMachine, segment: str, lower: list[Time], seq: int) -> None:
    """A new incarnation of `segment` that kept nothing after event `seq`, and no gap."""
    sub.began(segment, Began(2, SegmentState(seq, tuple(lower), (), ()), False, False, True))


@pytest.mark.rule("E10", "E17", "E18")
@pytest.mark.parametrize("loses", ["its history", "its end"])
def test_an_epoch_that_lost_data_before_all_segments_had_begun_is_aborted_and_not_seen_whole(loses: str) -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    sub.event("a", data(0, 1))
    sub.event("a", data(1, 2))
    if loses == "its history":
        joins(sub, "a", [0], incarnation=2, gap=True)
        torn = [1, 2]
    else:
        rewound(sub, "a", [0], 0)  # event 1 is lost
        torn = [2]
    joins(sub, "b", [0], [1])  # 1 was under way there, so it is no epoch of this subscriber, whole or not
    sub.event("b", data(0, 2))
    sub.event("b", moved(1, 0, 4))
    sub.event("a", moved(0 if loses == "its history" else 1, 0, 4))
    assert epochs(sub) == [EpochWasAborted(2)]
    assert [event.time for event in events(sub) if isinstance(event, EpochWasAborted)] == [2]
    assert not any(sub.saw_whole(time) for time in torn)
    assert sub.saw_whole(3)


@pytest.mark.rule("E17")
def test_who_resumes_and_loses_data_before_all_segments_have_begun_gets_the_report_of_its_own_epochs() -> None:
    sub = subscriber(Cursor("uid", {"a": m.Position(1, -1), "b": m.Position(1, -1)}, (1,)))
    joins(sub, "a", [0], filters=False)
    sub.event("a", data(0, 0))  # before the cursor, and so not reported
    sub.event("a", data(1, 1))
    joins(sub, "a", [2], incarnation=2, gap=True)  # of 1 the publisher knows nothing any more
    joins(sub, "b", [0], filters=False)
    sub.event("b", data(0, 1))
    sub.event("b", moved(1, 0, 2))
    assert epochs(sub) == [EpochWasAborted(1)]
    assert not sub.saw_whole(1)


def test_a_time_of_another_shape_that_waited_for_other_segments_is_refused_as_any_other() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    sub.event("a", data(0, (1, 2)))
    with pytest.raises(TimeShapeError):
        joins(sub, "a", [0], incarnation=2, gap=True)


@pytest.mark.rule("S33", "E11")
def test_data_of_a_time_that_a_new_incarnation_gives_again_is_not_added_to_the_epoch() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", moved(0, 0, 6))  # a has completed 5, without data
    joins(sub, "a", [4], incarnation=2, gap=True)
    sub.event("b", data(0, 5, b"b"))
    sub.event("a", data(0, 5, b"again"))
    sub.event("b", moved(1, 0, 6))
    assert [epoch.batches for epoch in epochs(sub) if isinstance(epoch, EpochBatches)] == [
        (("b", data(0, 5, b"b")),),
    ]


@pytest.mark.rule("E16")
def test_a_cursor_never_names_an_old_position_by_a_new_incarnation() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", data(0, 0))
    sub.event("a", moved(1, 0, 1))
    sub.event("b", moved(0, 0, 1))  # epoch 0 is complete, and not yielded yet
    joins(sub, "a", [0], seq=7, incarnation=2, gap=True)
    assert sub.cursor().positions["a"] == (1, -1)
    assert [epoch.time for epoch in epochs(sub)] == [0]
    assert sub.cursor().positions["a"] == (2, 7)


@pytest.mark.rule("E16")
def test_before_it_is_ready_the_cursor_is_the_one_it_resumes_from() -> None:
    with pytest.raises(CursorError, match="every segment"):
        subscriber().cursor()
    cursor = Cursor("uid", {"a": m.Position(1, 4), "b": m.Position(1, 2)}, (3,))
    sub = subscriber(cursor)
    joins(sub, "a", [2], seq=4, filters=False)
    sub.event("a", data(5, 3))
    assert sub.cursor() == cursor


@pytest.mark.rule("E16", "E15")
def test_an_abort_that_was_not_taken_yet_is_reported_after_a_resume() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("b", data(0, 1))
    sub.event("a", m.Aborted(0, -1, (1,)))
    sub.event("b", data(1, 0))
    sub.event("a", moved(1, 0, 2))
    sub.event("b", moved(2, 0, 2))
    cursor = sub.cursor()  # 0 is to be read again at b, and with it half of 1; a's abort is behind its position
    assert (cursor.unreported_aborts, cursor.aborted) == ((1,), ())
    resumed = subscriber(Cursor.from_json(cursor.to_json()))
    joins(resumed, "a", [2], seq=1, filters=False)
    joins(resumed, "b", [0], seq=-1, filters=False)
    for event in (data(0, 1), data(1, 0), moved(2, 0, 2)):
        resumed.event("b", event)
    assert [type(epoch) for epoch in epochs(resumed)] == [EpochBatches, EpochWasAborted]
    assert not resumed.saw_whole(1)


@pytest.mark.rule("E16")
def test_an_epoch_that_was_handed_out_and_not_passed_holds_the_cursor_back() -> None:
    sub = subscriber()
    sub.only_epochs()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    for time in (0, 1):
        sub.event("a", data(time, time))
    sub.event("a", moved(2, 0, 2))
    sub.event("b", moved(0, 0, 2))
    first, second = sub.hand_out_epoch(), sub.hand_out_epoch()
    assert first is not None
    assert second is not None
    assert sub.waiting_bytes == sub.buffered_bytes == 0, "what is in hand waits for nobody"
    assert (sub.cursor().frontier, sub.cursor().positions["a"].seq) == ((0,), -1)
    sub.pass_epoch(second)
    assert sub.cursor().positions["a"].seq == -1
    sub.pass_epoch(first)
    assert (sub.cursor().frontier, sub.cursor().positions["a"].seq) == ((2,), 2)


@pytest.mark.rule("E16")
def test_an_epoch_is_passed_with_its_last_event_once_all_before_are() -> None:
    sub = subscriber()
    sub.only_events()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", data(0, 0))
    last = events(sub)
    sub.event("b", moved(0, 0, 2))
    sub.event("a", moved(1, 0, 1))  # completes 0 while its data is in hand
    end = events(sub)
    sub.event("a", data(2, 1))
    sub.event("a", moved(3, 1, 2))
    later = events(sub)
    for event in (*later, *end):
        sub.pass_event(event)
        assert (sub.cursor().frontier, sub.cursor().positions["a"].seq) == ((0,), -1)
    for event in last:
        assert sub.cursor().frontier == (0,)
        sub.pass_event(event)
    assert (sub.cursor().frontier, sub.cursor().positions["a"].seq) == ((2,), 3)


@pytest.mark.rule("E16")
@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("read_by", ["epochs", "events"])
def test_a_cursor_keeps_a_reported_abort_and_reports_one_that_was_only_handed_out(
    read_by: str, *, passed: bool
) -> None:
    sub = SubscriberMachine("uid", PAIR, ["a"])
    (sub.only_epochs if read_by == "epochs" else sub.only_events)()
    hand_out = sub.hand_out_epoch if read_by == "epochs" else sub.hand_out_event
    joins(sub, "a", [(0, 0)])
    for event in (data(0, (0, 0)), data(1, (1, 0)), m.Aborted(2, 1, ((1, 0),)), moved(3, (0, 0), (0, 1))):
        sub.event("a", event)
    handed_out = list(iter(hand_out, None))
    (abort,) = [item for item in handed_out if type(item) is EpochWasAborted]
    if passed:
        sub.pass_epoch(abort) if read_by == "epochs" else sub.pass_event(abort)
    cursor = Cursor.from_json(sub.cursor().to_json())
    told, untold = (((1, 0),), ()) if passed else ((), ((1, 0),))
    assert (cursor.frontier, cursor.aborted, cursor.unreported_aborts) == (((0, 0),), told, untold)
    resumed = SubscriberMachine("uid", PAIR, ["a"], cursor=cursor)
    joins(resumed, "a", [(0, 0)], filters=False)
    for event in (data(0, (0, 0)), data(1, (1, 0)), m.Aborted(2, 1, ((1, 0),)), moved(3, (0, 0), (0, 1))):
        resumed.event("a", event)
    assert [(type(epoch), epoch.time) for epoch in epochs(resumed)] == [
        (EpochBatches, (0, 0)),
        *([] if passed else [(EpochWasAborted, (1, 0))]),
    ]
    assert not resumed.saw_whole((1, 0))


@pytest.mark.rule("E16")
def test_an_abort_is_reported_once_over_all_lives_and_at_its_turn() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", m.Aborted(0, -1, (1,)))
    for life in (1, 2):  # each saves before the turn of 1 has come
        cursor = sub.cursor()
        assert (cursor.unreported_aborts, cursor.aborted) == ((1,), ()), life
        sub = subscriber(cursor)
        joins(sub, "a", [0], seq=0, filters=False)
        joins(sub, "b", [0], filters=False)
        assert epochs(sub) == []
    sub.event("a", moved(1, 0, 2))
    sub.event("b", m.Aborted(0, -1, (1,)))  # b knows it now, too
    sub.event("b", moved(1, 0, 2))
    assert epochs(sub) == [EpochWasAborted(1)]
    cursor = sub.cursor()
    assert (cursor.unreported_aborts, cursor.aborted) == ((), ())
    sub = subscriber(cursor)
    joins(sub, "a", [2], seq=1, filters=False)
    joins(sub, "b", [2], seq=1, filters=False)
    assert epochs(sub) == []


@pytest.mark.rule("E16")
def test_an_abort_is_reported_also_where_the_log_begins_after_it_or_the_stream_is_complete() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", m.Aborted(0, -1, (1,)))
    sub.event("a", moved(1, 0, None))
    sub.event("b", moved(0, 0, None))
    cursor = sub.cursor()
    assert (cursor.frontier, cursor.unreported_aborts) == ((), (1,))
    resumed = subscriber(cursor)
    joins(resumed, "a", [], seq=1, filters=False)
    joins(resumed, "b", [], seq=0, filters=False)
    assert epochs(resumed) == [EpochWasAborted(1)]
    assert resumed.complete


@pytest.mark.rule("E16", "E17")
def test_an_abort_that_only_the_state_at_the_cursor_knows_is_still_reported() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", m.Aborted(0, -1, (1,)))
    resumed = subscriber(sub.cursor())
    resumed.began("a", Began(1, SegmentState(0, (0,), (), (1,)), False, False, False))
    joins(resumed, "b", [0], filters=False)
    resumed.event("a", moved(1, 0, 2))
    resumed.event("b", moved(0, 0, 2))
    assert epochs(resumed) == [EpochWasAborted(1)]


@pytest.mark.rule("E16")
def test_a_reader_of_events_gets_after_a_resume_what_it_had_not_taken_and_nothing_twice() -> None:
    sub = subscriber()
    sub.only_events()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("a", m.Aborted(0, -1, (1, 2)))
    events = iter(sub.next_event, None)
    assert EpochWasAborted(1) in events  # and 2 waits behind it
    cursor = sub.cursor()
    assert (cursor.unreported_aborts, cursor.aborted) == ((2,), (1,))
    resumed = subscriber(cursor)
    resumed.only_events()
    joins(resumed, "a", [0], filters=False)
    joins(resumed, "b", [0], filters=False)
    resumed.event("a", m.Aborted(0, -1, (1, 2)))
    told = [event for event in iter(resumed.next_event, None) if isinstance(event, EpochWasAborted)]
    assert told == [EpochWasAborted(2)]


@pytest.mark.rule("E16", "E15")
def test_an_epoch_that_was_aborted_before_the_join_is_not_given_by_halves_after_a_resume() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    sub.began("b", Began(1, SegmentState(-1, (0,), (), (1,)), True, False, False))
    sub.event("a", data(0, 0))
    sub.event("a", data(1, 1))
    sub.event("a", moved(2, 0, 2))
    sub.event("b", moved(0, 0, 2))  # 0 is complete and was not taken, 1 is over
    resumed = subscriber(sub.cursor())
    joins(resumed, "a", [0], filters=False)
    joins(resumed, "b", [2], seq=0, filters=False)
    for event in (data(0, 0), data(1, 1), moved(2, 0, 2)):
        resumed.event("a", event)
    assert [epoch.time for epoch in epochs(resumed)] == [0]


@pytest.mark.rule("E16")
@pytest.mark.parametrize("partial", [False, True])
def test_a_reader_of_events_gets_no_abort_twice_though_it_reads_the_log_again(partial: bool) -> None:
    sub = SubscriberMachine("uid", INT, ["a"], partial=partial)
    sub.only_events()
    log: list[m.Event] = [data(0, 0), m.Aborted(1, 0, (1,)), m.Frontier(2, 1, ((0, -1), (2, 1)))]
    joins(sub, "a", [0])
    for event in log:
        sub.event("a", event)
    for last in (Arrived, EpochWasAborted):  # the cursor stays before epoch 0 until the frontier is taken, too
        while type(sub.next_event()) is not last:
            pass
    cursor = sub.cursor()
    assert cursor.positions["a"] == (1, -1)
    resumed = SubscriberMachine("uid", INT, ["a"], partial=partial, cursor=cursor)
    resumed.only_events()
    joins(resumed, "a", [0], filters=False)
    for event in log:
        resumed.event("a", event)
    assert not [event for event in iter(resumed.next_event, None) if type(event) is EpochWasAborted]
