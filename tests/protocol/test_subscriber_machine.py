"""A subscriber over several segments: whole epochs or none, one frontier that never goes back, cursors, gaps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import EpochTooLarge
from epochal.protocol import messages as m
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.effects import (
    Arrived,
    Began,
    EpochBatches,
    EpochWasAborted,
    FrontierMoved,
    SegmentCameUp,
    SegmentWentDown,
)
from epochal.protocol.subscriber.join_filter import JoinFilter
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.since import AfterEvent, From
from epochal.protocol.times import TimeShape, less_than

INT = TimeShape.parse("int")


def began(lower: Any = (0,), upper: Any = (), aborted: Any = (), seq=-1, **options):
    known = {"incarnation": 1, "filters": True, "gap": False, "resumed": False} | options
    return Began(state=SegmentState(seq, tuple(lower), tuple(upper), tuple(aborted)), **known)


def data(seq, time, payload=b"x"):
    return m.Data(seq, seq - 1, time, b"", 1, 0, payload)


def moved(seq, old, new):
    return m.Frontier(seq, seq - 1, ((old, -1), (new, 1)))


def epochs(subscriber):
    found: list[Any] = []
    while (epoch := subscriber.next_epoch()) is not None:
        found.append(epoch.time if isinstance(epoch, EpochBatches) else epoch)
    return found


def events(subscriber):
    found: list[Any] = []
    while (event := subscriber.next_event()) is not None:
        found.append(event)
    return found


# ---- who may deliver what: S10, S11, E15 ----


@pytest.mark.rule("S11", "S10", "S13")
def test_the_worked_example_is_delivered_from_six_on():
    subscriber = SubscriberMachine("uid", INT, ["0"])
    subscriber.began("0", began([3], [3, 5]))
    for seq, time in enumerate((3, 4, 5, 6, 7)):
        subscriber.event("0", data(seq, time))
    subscriber.event("0", moved(5, 3, 5))
    subscriber.event("0", data(6, 5))  # the frontier is at 5, and 5 is still filtered
    subscriber.event("0", moved(7, 5, 9))
    assert epochs(subscriber) == [6, 7]
    assert [subscriber.saw_whole(time) for time in range(8)] == [False] * 6 + [True, True]


@pytest.mark.rule("S10")
def test_a_time_incomparable_to_all_active_ones_is_delivered():
    subscriber = SubscriberMachine("uid", TimeShape.parse("(int, int)"), ["0"])
    subscriber.began("0", began([(0, 0)], [(1, 1)]))
    for seq, time in enumerate([(0, 1), (2, 0), (0, 2), (1, 1)]):
        subscriber.event("0", data(seq, time))
    subscriber.event("0", m.Frontier(4, 3, (((0, 0), -1),)))
    assert epochs(subscriber) == [(0, 2), (2, 0)]


@pytest.mark.rule("S14")
@pytest.mark.parametrize("after", [[((5, 0), 1)], []])
def test_the_filters_are_gone_once_they_have_nothing_to_say(after):
    subscriber = SubscriberMachine("uid", TimeShape.parse("(int, int)"), ["0"])
    subscriber.began("0", began([(0, 0)], [(0, 3)]))
    subscriber.event("0", data(0, (0, 2)))
    assert subscriber._seen._filters
    subscriber.event("0", m.Frontier(1, 0, (((0, 0), -1), *after)))
    assert subscriber._seen._filters == []


@pytest.mark.rule("S12")
def test_what_is_skipped_is_judged_by_its_time_alone():
    class Untouchable(bytes):
        def __len__(self) -> int:
            raise AssertionError("the payload was looked at")

    subscriber = SubscriberMachine("uid", INT, ["0"])
    subscriber.began("0", began([3], [5]))
    subscriber.event("0", data(0, 4, Untouchable(b"x")))
    assert subscriber.buffered_bytes == 0


@pytest.mark.rule("S17", "E15")
def test_an_epoch_that_was_missed_on_one_segment_is_skipped_on_all():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"])
    subscriber.began("0", began([3], [4]))
    subscriber.began("1", began([2], [6]))
    for segment in "01":
        for seq, time in enumerate(range(2, 9)):
            subscriber.event(segment, data(seq, time))
    subscriber.event("0", moved(8, 3, 9))
    assert epochs(subscriber) == []
    subscriber.event("1", moved(8, 2, 9))
    assert epochs(subscriber) == [7, 8]


@pytest.mark.rule("E18")
def test_an_epoch_of_before_the_join_was_not_seen_whole_though_it_is_complete():
    subscriber = SubscriberMachine("uid", INT, ["0"])
    subscriber.began("0", began([5]))
    subscriber.event("0", data(0, 5))
    subscriber.event("0", moved(1, 5, 7))
    assert [subscriber.saw_whole(time) for time in (3, 4, 5, 6, 7)] == [False, False, True, True, False]


@pytest.mark.rule("E15")
def test_an_epoch_that_a_segment_had_completed_before_the_join_is_not_delivered():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"])
    subscriber.began("0", began([5]))  # has sent its part of 4, and nobody knows whether there was one
    subscriber.began("1", began([3]))
    subscriber.event("1", data(0, 4))
    subscriber.event("1", data(1, 5))
    subscriber.event("1", moved(2, 3, 6))
    subscriber.event("0", moved(0, 5, 6))
    assert epochs(subscriber) == [5]
    assert not subscriber.saw_whole(4)


@pytest.mark.rule("E15", "E14")
def test_what_was_aborted_before_the_join_is_not_delivered():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"])
    subscriber.began("0", began([3], [], [4]))
    subscriber.began("1", began([3]))
    subscriber.event("1", data(0, 4))
    subscriber.event("1", data(1, 5))
    for segment in "01":
        subscriber.event(segment, moved(5, 3, 6))
    assert epochs(subscriber) == [5]
    assert not subscriber.saw_whole(4)


@pytest.mark.rule("E15")
def test_an_abort_on_one_segment_aborts_the_epoch_and_drops_what_others_send():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"])
    for segment in "01":
        subscriber.began(segment, began())
    subscriber.event("0", data(0, 0))
    subscriber.event("1", m.Aborted(0, -1, (0,)))
    subscriber.event("0", data(1, 0))
    assert subscriber.buffered_bytes == 0
    for segment in "01":
        subscriber.event(segment, moved(2, 0, 1))
    assert epochs(subscriber) == [EpochWasAborted(0)]
    assert not subscriber.saw_whole(0)


# ---- several segments: S17, S18, S19 ----


@pytest.mark.rule("S17", "S18")
def test_nothing_is_delivered_before_every_snapshot_is_in_and_nothing_is_lost(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader(None)
    reader.join("0")
    for time in range(4):
        writer.append("0", time, b"a")
        writer.append("1", time, b"b")
        if time < 2:
            writer.advance(time + 1)
    assert not reader.machine.ready
    assert (reader.epochs(), reader.events()) == ([], [])
    reader.join("1")  # 0 and 1 are complete there, 2 and 3 active
    assert reader.machine.ready
    writer.append("0", 4, b"a")
    writer.append("1", 4, b"b")
    writer.advance(5)
    assert reader.epochs() == [(4, [b"a", b"b"])]


@pytest.mark.rule("S18")
def test_what_came_while_a_snapshot_was_awaited_is_judged_by_the_merged_filter():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"])
    subscriber.began("0", began([0]))
    for seq, time in enumerate((1, 3)):
        subscriber.event("0", data(seq, time))
    assert events(subscriber) == []
    subscriber.began("1", began([0], [2]))
    for segment in "01":
        subscriber.event(segment, moved(2, 0, 4))
    assert epochs(subscriber) == [3]


@pytest.mark.rule("E18")
@pytest.mark.parametrize("size", [0, 1000])
def test_what_waits_for_other_segments_to_begin_is_bounded(size):
    subscriber = SubscriberMachine("uid", INT, ["0", "1"], max_buffer_bytes=20_000)
    subscriber.began("0", began([0]))

    def many():
        for time in range(100):
            subscriber.event("0", data(2 * time, time, bytes(size)))
            subscriber.event("0", moved(2 * time + 1, time, time + 1))

    with pytest.raises(EpochTooLarge, match="max_buffer_bytes"):
        many()


@pytest.mark.rule("S17")
def test_the_merged_frontier_is_the_minimal_times_of_all_segments():
    subscriber = SubscriberMachine("uid", TimeShape.parse("(int, int)"), ["0", "1"])
    subscriber.began("0", began([(0, 3), (2, 2)]))
    subscriber.began("1", began([(1, 1)]))
    assert subscriber.frontier == Antichain([(0, 3), (1, 1)])
    subscriber.event("1", m.Frontier(0, -1, (((1, 1), -1),)))
    assert subscriber.frontier == Antichain([(0, 3), (2, 2)])


@pytest.mark.rule("S19")
def test_a_segment_that_is_down_is_reported_and_holds_the_frontier(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    reader.prefixes["0"].clear()
    for reason in ("silent", "refused"):  # the next attempt fails as well
        reader.machine.down("0", reason)
    writer.append("0", 0, b"a")
    writer.append("1", 0, b"b")
    writer.advance(3)
    assert [each for each in reader.events() if isinstance(each, SegmentWentDown)] == [SegmentWentDown("0", "silent")]
    assert (reader.frontier, reader.epochs()) == ([0], [])
    reader.rejoin("0")
    for name in "001":
        reader.machine.up(name)
    assert [each for each in reader.events() if isinstance(each, SegmentCameUp)] == [SegmentCameUp("0")]
    assert (reader.frontier, reader.epochs()) == ([3], [(0, [b"a", b"b"])])


# ---- what the application may ask for: S15, S16, E18 ----


@pytest.mark.rule("S15")
def test_a_coarser_filter_may_be_used():
    subscriber = SubscriberMachine("uid", INT, ["0"])
    subscriber.restrict(JoinFilter([6]))
    subscriber.began("0", began([3], [4]))
    for seq, time in enumerate((4, 5, 6)):
        subscriber.event("0", data(seq, time))
    subscriber.event("0", moved(3, 3, 9))
    assert epochs(subscriber) == [6]
    assert (subscriber.saw_whole(5), subscriber.saw_whole(6)) == (False, True)


@pytest.mark.rule("S15")
def test_partial_epochs_may_be_asked_for():
    subscriber = SubscriberMachine("uid", INT, ["0"], partial=True)
    subscriber.began("0", began([3], [5]))
    for seq, time in enumerate((3, 4, 5)):
        subscriber.event("0", data(seq, time))
    arrived = [event.data.time for event in events(subscriber) if isinstance(event, Arrived)]
    assert arrived == [3, 4, 5]


@pytest.mark.rule("S15", "E18")
@pytest.mark.parametrize("filters", [True, False], ids=["joined", "resumed"])
def test_a_partial_epoch_is_delivered_and_not_taken_for_seen_whole(filters):
    subscriber = SubscriberMachine("uid", INT, ["0"], partial=True)
    subscriber.began("0", began([3], [4], [6], filters=filters))
    subscriber.event("0", data(0, 4))
    subscriber.event("0", moved(1, 3, 9))
    assert [event.data.time for event in events(subscriber) if isinstance(event, Arrived)] == [4]
    assert [time for time in range(10) if subscriber.saw_whole(time)] == [5, 7, 8]


@pytest.mark.rule("S16")
def test_a_move_of_the_frontier_is_an_event_without_any_data(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    reader.events()
    writer.advance(4)
    assert reader.events() == [FrontierMoved((4,))]
    assert reader.frontier == [4]


@pytest.mark.rule("E18")
def test_epochs_come_in_a_linear_extension_of_time_and_empty_ones_are_not_yielded(wire_up):
    wiring = wire_up("(int, int)")
    writer, reader = wiring.writer(), wiring.reader()
    for time in [(2, 0), (0, 2), (1, 1), (0, 0)]:
        writer.append("0", time, b"a")
    writer.machine.hold((0, 1))
    wiring.run()
    writer.leave(m.Leaving.FINISH)
    order = [time for time, _ in reader.epochs()]
    assert sorted(order) == [(0, 0), (0, 2), (1, 1), (2, 0)]
    assert not any(less_than(later, time) for n, time in enumerate(order) for later in order[n:])
    assert reader.machine.saw_whole((7, 7))
    assert reader.machine.complete


@pytest.mark.rule("E18")
def test_an_epoch_that_is_not_over_is_not_whole():
    subscriber = SubscriberMachine("uid", INT, ["0"])
    assert not subscriber.saw_whole(0)
    subscriber.began("0", began([0]))
    assert not subscriber.saw_whole(0)
    subscriber.event("0", moved(0, 0, 1))
    assert subscriber.saw_whole(0)


@pytest.mark.rule("E18")
def test_more_unfinished_data_than_allowed_is_an_error():
    subscriber = SubscriberMachine("uid", INT, ["0"], max_buffer_bytes=5_000)
    subscriber.only_epochs()
    subscriber.began("0", began([0]))
    for time in range(100):  # what is complete and waits for the application does not count
        subscriber.event("0", data(2 * time, time, bytes(1_000)))
        subscriber.event("0", moved(2 * time + 1, time, time + 1))
    for n in range(4):
        subscriber.event("0", data(200 + n, 100, bytes(1_000)))
    with pytest.raises(EpochTooLarge, match="max_buffer_bytes"):
        subscriber.event("0", data(204, 100, bytes(1_000)))


@pytest.mark.rule("E18")
def test_what_comes_before_all_snapshots_are_in_is_bounded_too():
    subscriber = SubscriberMachine("uid", INT, ["0", "1"], max_buffer_bytes=5_000)
    subscriber.began("0", began([0]))

    def flood():
        for seq in range(1_000):
            subscriber.event("0", data(seq, 0, bytes(100)))

    with pytest.raises(EpochTooLarge):
        flood()


@pytest.mark.rule("S20")
def test_a_complete_stream_is_seen_to_its_end(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    writer.append("1", 9, b"b")
    writer.leave(m.Leaving.FINISH)
    assert reader.epochs() == [(0, [b"a"]), (9, [b"b"])]
    assert reader.machine.complete


# ---- cursors: E16 ----


@pytest.mark.rule("E16")
def test_a_cursor_taken_between_two_yields_loses_and_repeats_nothing(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    for time in range(4):
        writer.append("0", time, b"a%d" % time)
        writer.append("1", time, b"b%d" % time)
    writer.append("0", 4, b"a4")
    writer.advance(4)
    assert reader.machine.next_epoch().time == 0
    text = reader.machine.cursor().to_json()
    again = wiring.reader(cursor=Cursor.from_json(text))
    writer.append("1", 4, b"b4")
    writer.advance(5)
    assert again.epochs() == [(time, [b"a%d" % time, b"b%d" % time]) for time in range(1, 5)]


@pytest.mark.rule("E16")
def test_a_cursor_of_a_late_joiner_still_skips_what_it_could_not_see_whole(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 3, b"before the join")
    reader = wiring.reader()
    writer.append("0", 3, b"after")
    writer.append("0", 5, b"whole")
    cursor = reader.machine.cursor()
    assert (cursor.frontier, cursor.seen_from) == ((0,), (4,))
    again = wiring.reader(cursor=Cursor.from_json(cursor.to_json()))
    assert list(again.machine.frontier) == [0]  # 3 is not complete: it gets one more record
    writer.append("0", 3, b"later")
    writer.advance(6)
    assert reader.epochs() == again.epochs() == [(5, [b"whole"])]
    assert not again.machine.saw_whole(3)


@pytest.mark.rule("E11", "E16")
def test_who_resumes_after_a_gap_takes_lost_epochs_that_begin_only_now_for_aborted_and_not_for_complete():
    lost = SegmentState(-1, (2,), (9,), (), (9,))  # with its memory a segment has lost all up to 9
    reader = SubscriberMachine("uid", INT, "ab")
    reader.began("a", began())
    reader.began("b", began())
    reader.began("a", Began(2, lost, filters=True, gap=True, resumed=False))
    cursor = reader.cursor()
    assert (cursor.frontier, cursor.seen_from) == ((0,), (10,))

    again = SubscriberMachine("uid", INT, "ab", cursor=Cursor.from_json(cursor.to_json()))
    again.only_epochs()
    again.began("a", Began(2, lost, filters=False, gap=False, resumed=False))
    again.began("b", began(filters=False))
    again.event("b", data(0, 5))
    again.event("b", data(1, 10))
    again.event("b", moved(2, 0, 11))
    assert (list(again.frontier), epochs(again)) == ([2], [])
    again.event("a", moved(0, 2, 11))
    assert epochs(again) == [EpochWasAborted(5), 10]


@pytest.mark.rule("E16")
def test_a_reader_of_events_can_resume_after_the_last_one_it_took(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    reader.machine.only_events()
    reader.events()
    writer.append("0", 0, b"taken")
    writer.append("0", 0, b"queued")
    writer.append("0", 1, b"queued too")
    writer.advance(2)
    assert reader.machine.next_event().data.payload == b"taken"
    again = wiring.reader(cursor=reader.machine.cursor())
    writer.append("0", 2, b"c")
    writer.advance(3)
    assert again.epochs() == [(0, [b"queued", b"taken"]), (1, [b"queued too"]), (2, [b"c"])]
    reader.events()
    assert reader.machine.cursor().frontier == (3,)


@pytest.mark.rule("E16")
def test_a_cursor_before_the_first_snapshots_is_the_one_that_was_given(wire_up):
    wiring = wire_up(segments="01")
    given_cursor = Cursor("uid-of-the-stream", {"0": m.Position(1, 3), "1": m.Position(1, 5)}, (2,))
    reader = wiring.reader(None, cursor=given_cursor)
    assert reader.machine.cursor() == given_cursor


@pytest.mark.rule("E16", "E15")
@given(st.data())
def test_however_often_it_is_resumed_a_reader_yields_each_epoch_once_and_whole(wire_up, data):
    wiring = wire_up("(int, int)", segments="01")
    writer = wiring.writer()
    reader = wiring.reader(From.START)
    expected: dict[Any, list[bytes]] = {}
    seen: list[Any] = []
    low = (0, 0)
    in_hand: Any = None
    for n in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["append", "append", "advance", "take", "resume"])):
            case "append":
                time = (low[0] + data.draw(st.integers(0, 2)), low[1] + data.draw(st.integers(0, 2)))
                writer.append(data.draw(st.sampled_from("01")), time, b"%03d" % n)
                expected.setdefault(time, []).append(b"%03d" % n)
            case "advance":
                low = (low[0] + data.draw(st.integers(0, 1)), low[1] + data.draw(st.integers(0, 1)))
                writer.advance(low)
            case "take":
                in_hand = in_hand or reader.machine.hand_out_epoch()
                if in_hand is not None and data.draw(st.booleans()):  # else the caller was interrupted before it had it
                    reader.machine.pass_epoch(in_hand)
                    seen.append((in_hand.time, sorted(d.payload for _, d in in_hand.batches)))
                    in_hand = None
            case "resume":
                wiring.readers.remove(reader)
                reader, in_hand = wiring.reader(cursor=Cursor.from_json(reader.machine.cursor().to_json())), None
    if in_hand is not None:
        reader.machine.pass_epoch(in_hand)
        seen.append((in_hand.time, sorted(d.payload for _, d in in_hand.batches)))
    writer.leave(m.Leaving.FINISH)
    seen += reader.epochs()
    assert dict(seen) == expected
    assert len(seen) == len(expected)
    order = [time for time, _ in seen]
    assert not any(less_than(later, time) for n, time in enumerate(order) for later in order[n:])


# ---- late joiners in general: S9, S10, E13, E15 ----


@pytest.mark.rule("E15", "S9", "S10", "S17")
@given(st.data())
def test_a_reader_that_joins_sees_each_epoch_whole_or_not_at_all(wire_up, data):
    wiring = wire_up("(int, int)", segments="01", min_writers=2)
    writers = [wiring.writer("w1"), wiring.writer("w2")]
    lows = [(0, 0), (0, 0)]
    expected: dict[Any, list[bytes]] = {}
    aborted = set()
    joined: list[Any] = []
    for n in range(data.draw(st.integers(1, 30))):
        which = data.draw(st.integers(0, 1))
        writer, low = writers[which], lows[which]
        match data.draw(st.sampled_from(["append", "append", "advance", "abort", "join", "join one"])):
            case "append":
                time = (low[0] + data.draw(st.integers(0, 2)), low[1] + data.draw(st.integers(0, 2)))
                if time not in aborted:
                    writer.append(data.draw(st.sampled_from("01")), time, b"%03d" % n)
                    expected.setdefault(time, []).append(b"%03d" % n)
            case "abort":
                writer.machine.abort(low)
                wiring.run()
                aborted.add(low)
            case "advance":
                lows[which] = (low[0] + data.draw(st.integers(0, 1)), low[1] + data.draw(st.integers(0, 1)))
                writer.advance(lows[which])
            case "join":
                joined.append(wiring.reader(data.draw(st.sampled_from(From))))
            case "join one":
                half = [reader for reader in joined if not reader.machine.ready]
                if half:
                    half[0].join("1")
                else:
                    joined.append(wiring.reader(None))
                    joined[-1].join("0")
    for reader in joined:
        if not reader.machine.ready:
            reader.join("1")
    for writer in writers:
        writer.leave(m.Leaving.FINISH)
    for reader in joined:
        found = reader.epochs()
        whole = [epoch for epoch in found if not isinstance(epoch, EpochWasAborted)]
        for time, payloads in whole:
            assert payloads == sorted(expected[time])
            assert time not in aborted
        for time in expected:
            assert reader.machine.saw_whole(time) == (time in dict(whole))
        assert {epoch.time for epoch in found if isinstance(epoch, EpochWasAborted)} <= aborted
        assert reader.machine.complete
        from_start = all(b.state.seq == m.NOTHING_YET for _, b in reader.began)
        if from_start:
            assert set(dict(whole)) == set(expected) - aborted


@pytest.mark.rule("E13")
def test_who_begins_at_the_start_of_a_cut_history_begins_with_a_whole_epoch(wire_up):
    wiring = wire_up(segments="01", retention_bytes=4_000)
    writer = wiring.writer()
    for time in range(30):
        for n in range(3):
            writer.append("0", time, b"a%d" % n)
        writer.append("1", time, b"b")
        writer.advance(time + 1)
    found = wiring.reader(From.START).epochs()
    assert found
    assert all(payloads == [b"a0", b"a1", b"a2", b"b"] for _, payloads in found)
    assert found[-1][0] == 29


# ---- what was asked for: E20 ----


@pytest.mark.rule("E20", "Q16")
@pytest.mark.parametrize("partial", [False, True])
def test_only_what_a_wanted_time_reaches_is_delivered(wire_up, partial):
    wiring, wanted = wire_up("(int, int)"), ((0, 2), (2, 1))
    writer, reader = wiring.writer(), wiring.reader(None, wanted=wanted, partial=partial)
    for time in ((0, 0), (0, 3), (1, 1), (2, 0), (2, 2)):
        writer.append("0", time)
    reader.join("0", EpochQuery(wanted))
    writer.append("0", (0, 5))
    writer.append("0", (1, 0))
    writer.leave(m.Leaving.FINISH)
    if not partial:
        assert [time for time, _ in reader.epochs()] == [(0, 3), (0, 5), (2, 2)]
    assert [event.data.time for event in reader.events() if isinstance(event, Arrived)] == [(0, 3), (2, 2), (0, 5)]
    assert reader.machine.saw_whole((0, 4))
    assert not reader.machine.saw_whole((1, 1))


@pytest.mark.rule("E20", "E16")
def test_an_abort_that_was_asked_for_is_reported_though_the_log_begins_after_it():
    subscriber = SubscriberMachine("uid", INT, ["0"], wanted=[5])
    subscriber.only_epochs()
    subscriber.began("0", began(lower=(3,), aborted=(4, 6), seq=8))
    again = subscriber.cursor()
    subscriber.event("0", moved(9, 3, 8))
    assert epochs(subscriber) == [EpochWasAborted(6)]
    resumed = SubscriberMachine("uid", INT, ["0"], cursor=Cursor.from_json(again.to_json()))
    resumed.only_epochs()
    resumed.began("0", began(lower=(3,), aborted=(4, 6), seq=8, filters=False))
    resumed.event("0", moved(9, 3, 8))
    assert epochs(resumed) == [EpochWasAborted(6)]


@pytest.mark.rule("E20", "E16")
def test_a_cursor_carries_what_was_asked_for(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader(None, wanted=[2])
    for time in range(4):
        writer.append("0", time)
    reader.join("0", EpochQuery((2,)))
    resumed = wiring.reader(cursor=Cursor.from_json(reader.machine.cursor().to_json()))
    writer.leave(m.Leaving.FINISH)
    assert [time for time, _ in reader.epochs()] == [time for time, _ in resumed.epochs()] == [2, 3]


@pytest.mark.rule("E20", "Q3")
@given(st.integers(-1, 11), st.booleans())
def test_after_any_event_every_epoch_that_begins_there_is_whole(wire_up, seq, pushes):
    wiring = wire_up()
    writer = wiring.writer()
    for time in range(4):
        writer.append("0", time)
        writer.append("0", time + 1)
        writer.advance(time + 1)
    reader = wiring.reader(None)
    reader.join("0", AfterEvent(seq), pushes=pushes)
    writer.leave(m.Leaving.FINISH)
    wiring.tick(1.5)
    log = [event for event in wiring.log["0"] if isinstance(event, m.Data)]
    whole = {event.time for event in log} - {event.time for event in log if event.seq <= seq}
    assert [time for time, _ in reader.epochs()] == sorted(whole)


# ---- what was lost with a memory: E11 ----


@pytest.mark.rule("E11")
@pytest.mark.parametrize("gap", [False, True])
def test_an_epoch_that_begins_where_another_segment_has_lost_it_is_reported_as_aborted(gap):
    """Nobody had begun 6 when segment 1 lost its memory, with a horizon up to 7: no event of its own tells of it.

    4 was over at segment 1 before, and was whole for who followed then; 8 is beyond what was lost.
    """
    subscriber = SubscriberMachine("s", INT, ("0", "1"))
    subscriber.began("0", began([3]))
    if gap:
        subscriber.began("1", began([5]))
    lost = SegmentState(-1, (5,), (7,), (), (7,))
    subscriber.began("1", Began(state=lost, incarnation=2, filters=True, gap=gap, resumed=False))
    for seq, time in enumerate((4, 6, 6, 8)):
        subscriber.event("0", data(seq, time))
    subscriber.event("0", moved(4, 3, 9))
    subscriber.event("1", moved(0, 5, 9))
    assert epochs(subscriber) == [EpochWasAborted(6), 8]
    assert not subscriber.saw_whole(6)


@pytest.mark.rule("E11", "E2")
def test_an_epoch_that_was_lost_ahead_is_reported_also_where_its_abort_comes_before_its_data():
    """A writer that was refused 6 at segment 1 aborts it at segment 2, before this reader has 6 from segment 0."""
    subscriber = SubscriberMachine("s", INT, ("0", "1", "2"))
    for name in ("0", "1", "2"):
        subscriber.began(name, began([5]))
    lost = SegmentState(-1, (5,), (7,), (), (7,))
    subscriber.began("1", Began(state=lost, incarnation=2, filters=True, gap=True, resumed=False))
    subscriber.event("2", m.Aborted(0, -1, (6,)))
    subscriber.event("0", data(0, 6))
    subscriber.event("0", moved(1, 5, 9))
    subscriber.event("1", moved(0, 5, 9))
    subscriber.event("2", moved(1, 5, 9))
    assert epochs(subscriber) == [EpochWasAborted(6)]


@pytest.mark.rule("E11", "E2", "S15")
def test_a_reader_that_takes_parts_is_given_nothing_of_what_was_lost_ahead():
    """Every other reader is told that 6 is aborted, so it is no part of an epoch that may still complete."""
    subscriber = SubscriberMachine("s", INT, ("0", "1"), partial=True)
    subscriber.only_events()
    subscriber.began("0", began([5]))
    lost = SegmentState(-1, (5,), (7,), (), (7,))
    subscriber.began("1", Began(state=lost, incarnation=2, filters=True, gap=False, resumed=False))
    for seq, time in enumerate((6, 6, 8)):
        subscriber.event("0", data(seq, time))
    found = [each for each in events(subscriber) if isinstance(each, EpochWasAborted | Arrived)]
    assert found == [EpochWasAborted(6), Arrived("0", data(2, 8))]


@pytest.mark.rule("E11", "E20")
def test_a_lost_epoch_that_was_not_asked_for_is_not_reported():
    subscriber = SubscriberMachine("s", INT, ("0", "1"), wanted=[7])
    subscriber.began("0", began([5]))
    lost = SegmentState(-1, (5,), (7,), (), (7,))
    subscriber.began("1", Began(state=lost, incarnation=2, filters=True, gap=False, resumed=False))
    for seq, time in enumerate((6, 7)):
        subscriber.event("0", data(seq, time))
    subscriber.event("0", moved(2, 5, 8))
    subscriber.event("1", moved(0, 5, 8))
    assert epochs(subscriber) == [EpochWasAborted(7)]
