"""The writer: moves wait for appends everywhere, numbers, reconnects, and what is told when something fails."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.recorded import record_all

from epochal.errors import (
    CapabilityError,
    EpochAbortedError,
    LocalProtocolError,
    TimedOut,
    TimeShapeError,
    WriterClosed,
)
from epochal.protocol import messages as m
from epochal.protocol.messages import GROUP
from epochal.protocol.subscriber.effects import EpochWasAborted
from epochal.protocol.times import Time, TimeShape, less_equal
from epochal.protocol.writer.effects import Acked, Failed, Moved, Over, Reconnect, Send, SessionReady
from epochal.protocol.writer.machine import WriterMachine
from epochal.protocol.writer.session_states import WriterSessionEvent, WriterSessionState


def lower(wiring, segment="0"):
    return list(wiring.publishers[segment].progress.lower.frontier)


# ---- E1 ----


@pytest.mark.rule("E1")
def test_a_move_waits_for_an_append_at_another_segment(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    writer.hold_back("1")
    writer.append("0", 5, b"a")
    writer.append("1", 5, b"b")
    ticket = writer.advance(6)
    assert lower(wiring, "0") == [0]  # its part of 5 is there, that of segment 1 is on its way
    writer.cut()  # the writer dies: what was on its way is gone
    wiring.writers.remove(writer)
    wiring.tick(40, step=0.9)
    wiring.writer("other").advance(9)
    assert reader.epochs() == [EpochWasAborted(5)]
    assert Moved(ticket) not in writer.told


@pytest.mark.rule("E1")
def test_a_move_is_sent_once_the_appends_are_acknowledged(wire_up):
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.hold_back("1")
    writer.append("1", 5, b"b")
    ticket = writer.advance(6)
    writer.append("0", 6, b"c")  # at a time still held: it need not wait
    assert [type(event) for event in wiring.log["0"]] == [m.Data]
    writer.let_through("1")
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([6], [6])
    assert Moved(ticket) in writer.told


@pytest.mark.rule("E1")
@pytest.mark.parametrize("time", [4, 6], ids=["to before what is held", "to what is held"])
def test_a_move_that_is_repeated_is_confirmed_once_the_first_one_has_taken_effect(wire_up, time):
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.append("0", 5, b"a")
    writer.hold_back("1")
    first = writer.advance(6)
    again = writer.advance(time)
    assert lower(wiring, "1") == [0]
    assert not {Moved(first), Moved(again)} & set(writer.told)
    writer.let_through("1")
    assert lower(wiring, "1") == [6]
    assert writer.told[-2:] == [Moved(first), Moved(again)]


@pytest.mark.rule("E1")
def test_a_move_waits_for_the_append_before_it_whatever_becomes_of_later_ones(wire_up):
    wiring = wire_up(segments="012")
    writer = wiring.writer()
    writer.hold_back("0")
    writer.hold_back("1")
    writer.append("0", 5, b"before")
    ticket = writer.advance(6)
    writer.append("1", 6, b"behind, and under way")
    writer.append("2", 6, b"behind, and acknowledged")
    assert lower(wiring, "2") == [0]
    writer.let_through("0")
    assert lower(wiring, "2") == [6]
    writer.let_through("1")
    assert Moved(ticket) in writer.told


@pytest.mark.rule("E1")
@pytest.mark.parametrize("how", [m.Leaving.CLOSE, m.Leaving.FINISH])
def test_leaving_waits_like_a_move(wire_up, how):
    wiring = wire_up(segments="01")
    writer, other = wiring.writer(), wiring.writer("other")
    other.advance(7)
    writer.hold_back("1")
    writer.append("1", 5, b"b")
    writer.leave(how)
    assert lower(wiring, "0") == [0]
    writer.let_through("1")
    assert lower(wiring, "0") == [7]
    assert writer.machine.over


@pytest.mark.rule("E1")
@pytest.mark.parametrize("awaited", [False, True])
def test_a_move_after_an_append_that_failed_fails_and_is_not_sent(wire_up, awaited):
    wiring = wire_up(max_payload=100)
    writer = wiring.writer()
    writer.hold_back("0")
    (append,) = writer.append("0", 0, bytes(200), awaited=awaited)
    move = writer.advance(1, awaited=awaited)
    writer.let_through("0")
    assert [told.ticket for told in writer.of(Failed)] == [append, move]
    assert lower(wiring) == [0]
    assert list(writer.machine.held) == [0]
    writer.append("0", 0, b"small")
    if not awaited:
        with pytest.raises(Exception, match="200 bytes"):
            writer.machine.raise_failure()
    assert Moved(writer.advance(1)) in writer.told


@pytest.mark.rule("E1")
def test_the_failure_of_an_append_whose_caller_went_away_stops_the_next_move(wire_up):
    wiring = wire_up(max_payload=100)
    writer = wiring.writer()
    writer.hold_back("0")
    (append,) = writer.append("0", 0, bytes(200), awaited=True)
    writer.machine.unheard(append)
    writer.let_through("0")
    move = writer.advance(1, awaited=True)
    assert [told.ticket for told in writer.of(Failed)] == [append, move]
    writer.machine.raise_failure()  # the move's caller was told
    assert lower(wiring) == [0]


@pytest.mark.rule("E1", "S35")
@given(st.data())
def test_no_order_of_links_completes_an_epoch_that_lacks_an_append(wire_up, data):
    wiring = wire_up(segments="012")
    writer, reader = wiring.writer(), wiring.reader()
    time, sent = 0, 0
    for n in range(data.draw(st.integers(1, 30))):
        segment = data.draw(st.sampled_from("012"))
        match data.draw(st.sampled_from(["append", "advance", "hold back", "let through", "cut"])):
            case "append":
                writer.append(segment, time, b"%d" % n)
                sent += 1
            case "advance":
                time += 1
                writer.advance(time)
            case "hold back" if segment not in writer.held_back:
                writer.hold_back(segment)
            case "let through" if segment in writer.held_back:
                writer.let_through(segment)
            case "cut":
                writer.cut(segment)
                writer.connect(segment)
        for each in "012":
            published = [e for e in wiring.log[each] if isinstance(e, m.Data | m.Frontier)]
            closed: Time = 0
            for event in published:
                if isinstance(event, m.Frontier):
                    closed = event.changes[-1][0]
                else:
                    assert less_equal(closed, event.time)
    for segment in list(writer.held_back):
        writer.let_through(segment)
    writer.leave(m.Leaving.FINISH)
    assert writer.of(Failed) == []
    assert sum(len(payloads) for _, payloads in reader.epochs()) == sent
    assert len(writer.of(Acked)) == sent
    assert reader.machine.complete


# ---- capabilities ----


@pytest.mark.rule("S35")
def test_an_append_or_move_below_what_is_held_is_refused_before_anything_is_sent(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.advance(5)
    for wrong in (
        lambda: writer.machine.appends.append("0", 4, b"", 1, b""),
        lambda: writer.machine.hold(4),
        lambda: writer.machine.abort(4),
        lambda: writer.machine.release(4),
    ):
        with pytest.raises(CapabilityError):
            wrong()
    with pytest.raises(TimeShapeError):
        writer.machine.appends.append("0", (5, 5), b"", 1, b"")
    assert writer.machine.take() == []
    assert list(writer.machine.held) == [5]


@pytest.mark.rule("E50", "E1")
def test_an_advance_that_is_done_already_moves_nothing_and_waits_for_appends(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.advance(5)
    writer.machine.take()
    appended = writer.machine.appends.append("0", 5, b"", 1, b"")
    (append,) = writer.machine.take()
    repeated = writer.machine.advance(4, awaited=True)
    assert writer.machine.take() == []
    assert (list(writer.machine.held), writer.machine.busy) == ([5], True)
    writer.machine.receive("0", m.Ack("0", append.message.number, 7, 1))
    assert [report.ticket for report in writer.machine.reports()] == [appended, repeated]
    assert not writer.machine.busy
    writer.machine.appends.append("0", 5, b"", 1, b"")
    (append,) = writer.machine.take()
    repeated = writer.machine.advance(4)
    writer.machine.receive("0", m.AppendRefused("0", append.message.number, "payload_too_large", "too large"))
    assert [type(report) for report in writer.machine.reports()] == [Failed, Failed]  # what failed is not whole


@pytest.mark.rule("E50", "S35")
def test_in_a_partial_order_an_advance_is_done_where_all_that_is_held_is_after_it(wire_up):
    writer = wire_up(shape="(int, int)").writer()
    writer.machine.hold((0, 3))
    writer.machine.hold((3, 1))
    writer.machine.release((0, 0))
    for done in ((0, 1), (0, 0)):
        writer.machine.advance(done)
        assert list(writer.machine.held) == [(0, 3), (3, 1)]
    for beside in ((1, 1), (0, 2), (2, 2)):  # before one of them at most, and after none
        with pytest.raises(CapabilityError, match="only move forward"):
            writer.machine.advance(beside)
    writer.machine.advance((1, 3))
    assert list(writer.machine.held) == [(1, 3)]


def test_several_capabilities_are_held_and_released_one_by_one(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.advance(2)
    writer.machine.hold(5)
    writer.machine.hold(5)
    writer.machine.release(2)
    wiring.run()
    assert lower(wiring) == [5]
    writer.machine.release(5)
    with pytest.raises(CapabilityError, match="close"):
        writer.machine.release(5)


def test_a_closed_writer_says_so(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.leave(m.Leaving.FINISH)
    for wrong in (
        lambda: writer.machine.appends.append("0", 0, b"", 1, b""),
        lambda: writer.machine.advance(1),
        lambda: writer.machine.leave(m.Leaving.CLOSE),
    ):
        with pytest.raises(WriterClosed, match="has left"):
            wrong()


def test_a_writer_that_is_not_open_yet_says_so(wire_up):
    writer = wire_up().writer(connect=False)
    with pytest.raises(WriterClosed, match="not open yet"):
        writer.machine.appends.append("0", 0, b"", 1, b"")


@pytest.mark.rule("E2", "E4")
def test_after_an_abort_nothing_more_is_appended_there(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 3)
    writer.machine.abort(3)
    wiring.run()
    with pytest.raises(EpochAbortedError):
        writer.machine.appends.append("0", 3, b"", 1, b"")
    assert writer.machine.pending_epochs == ()
    writer.append("0", 4)


# ---- opening: E5 ----


@pytest.mark.rule("E5")
def test_a_writer_is_ready_only_when_all_segments_have_answered(wire_up):
    wiring = wire_up(segments="01")
    writer = wiring.writer(connect=False)
    writer.connect("0")
    assert writer.of(SessionReady) == []
    writer.connect("1")
    assert writer.of(SessionReady) == [SessionReady((0,))]


@pytest.mark.rule("E5")
def test_a_writer_is_heard_where_it_is_open_while_it_waits_for_other_segments(wire_up):
    wiring = wire_up(segments="01", writer_timeout=5.0)
    writer = wiring.writer(connect=False)
    writer.connect("0")
    wiring.tick(20)
    writer.connect("1")
    assert writer.of(SessionReady) == [SessionReady((0,))]
    assert writer.errors() == []


@pytest.mark.rule("E4", "E5")
@pytest.mark.parametrize(
    ("answered", "session"),
    [("nowhere", 1), ("nowhere", 2), ("at one segment", 1), ("on its way", 1), ("on its way", 2)],
)
def test_an_open_that_is_withdrawn_holds_nothing_back(wire_up, answered, session):
    wiring = wire_up(segments="01")
    other = wiring.writer("other")
    if session == 2:
        wiring.writer().leave(m.Leaving.CLOSE)
    writer = wiring.writer(connect=False, session=session)
    if answered == "nowhere":
        assert writer.machine.withdraw() is None
    else:
        writer.connect("0")
        if answered == "on its way":
            writer.hold_back("1")
            writer.connect("1")
        ticket = writer.machine.withdraw()
        wiring.run()
        if answered == "on its way":
            assert writer.of(Moved) == []
            writer.let_through("1")
        assert writer.of(Moved) == [Moved(ticket)]
        assert writer.machine.over
    other.advance(5)
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([5], [5])
    assert writer.errors() == []


@pytest.mark.rule("E4", "E5")
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("lost", ["before it is withdrawn", "after it is withdrawn"])
def test_an_open_that_is_withdrawn_leaves_with_the_first_word_of_each_later_connection(wire_up, lost, heard):
    """The writer goes before any answer: an open that reaches a publisher must not come without the leave."""
    wiring = wire_up(segments="01")
    other, writer = wiring.writer("other"), wiring.writer(connect=False)
    writer.connect("0")
    if heard:
        writer.deaf.add("1")
        writer.peers["1"] = b"its answer gets lost"
        writer.machine.connected("1")
        wiring.run()
    else:
        writer.hold_back("1")
        writer.connect("1")
    if lost == "before it is withdrawn":
        writer.cut("1")
    writer.machine.withdraw()
    writer.deaf.discard("1")
    if lost == "after it is withdrawn":
        writer.cut("1")
    wiring.run()
    assert writer.of(Moved) == [], "segment 1 may have had the open"
    writer.hold_back("1")
    writer.connect("1")
    writer.deaf.add("1")
    writer.let_through("1")
    other.advance(5)
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([5], [5])


@pytest.mark.rule("E4", "E5")
@pytest.mark.parametrize("how", ["withdrawn", "left by an exception"])
def test_a_segment_that_is_left_or_was_never_asked_is_not_opened_on_a_later_connection(wire_up, how):
    wiring = wire_up(segments="012" if how == "withdrawn" else "01")
    writer = wiring.writer(connect=how != "withdrawn")
    if how == "withdrawn":
        writer.connect("0")
        writer.hold_back("1")
        writer.connect("1")
        writer.machine.withdraw()
    else:
        writer.hold_back("1")
        writer.machine.leave(m.Leaving.ABORT)
    wiring.run()
    assert not writer.machine.over, "segment 1 owes its answer"
    writer.cut("0")
    for segment in wiring.segments:
        if segment != "1":
            writer.machine.connected(segment)
            assert not writer.machine.owed(segment)
    assert writer.machine.take() == []
    writer.let_through("1")
    assert len(writer.of(Moved)) == 1
    assert writer.machine.over


@pytest.mark.rule("E4", "E6")
@pytest.mark.parametrize("left", ["an append", "a move", "nothing"])
def test_an_open_that_is_withdrawn_keeps_what_an_earlier_session_left(wire_up, left):
    wiring = wire_up(segments="01")
    other = wiring.writer("other")
    earlier = wiring.writer()
    if left == "an append":
        earlier.append("0", 3)
    elif left == "a move":
        earlier.advance(3)
    earlier.cut()
    later = wiring.writer(session=2, connect=False)
    later.connect("0")
    later.hold_back("1")
    later.connect("1")
    ticket = later.machine.withdraw()
    wiring.run()
    assert later.of(Moved) == [], "nothing is said before it is known"
    later.let_through("1")
    assert later.of(Moved) == [Moved(ticket)]
    other.advance(5)
    held = {"an append": [0], "a move": [3], "nothing": [5]}[left]
    assert (lower(wiring, "0"), lower(wiring, "1")) == (held, held)


# ---- numbers, windows, reconnects: E6 ----


@pytest.mark.rule("E6")
@pytest.mark.parametrize("heard", [True, False])
def test_a_reconnect_repeats_what_was_not_answered_and_doubles_nothing(wire_up, heard):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    if heard:
        writer.deaf.add("0")
    else:
        writer.hold_back("0")
    writer.append("0", 0, b"b", b"c")
    writer.cut()
    writer.connect()
    writer.advance(1)
    assert reader.epochs() == [(0, [b"a", b"b", b"c"])]
    assert [told.position.seq for told in writer.of(Acked)] == [0, 1, 2]
    assert writer.errors() == []


@pytest.mark.rule("E6")
@pytest.mark.parametrize("heard", [True, False])
def test_moves_whose_answers_were_lost_are_not_taken_for_failed(wire_up, heard):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    if heard:
        writer.deaf.update("01")
    else:
        writer.hold_back("0")
        writer.hold_back("1")
    tickets = [writer.advance(1), writer.advance(2)]
    writer.machine.abort(2)
    tickets.append(writer.advance(3))
    wiring.run()
    writer.cut()
    writer.connect()
    assert writer.of(Failed) == []
    assert {told.ticket for told in writer.of(Moved)} >= set(tickets)
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([3], [3])
    writer.append("1", 3, b"b")
    writer.advance(4)
    assert reader.epochs() == [(0, [b"a"]), EpochWasAborted(2), (3, [b"b"])]


@pytest.mark.rule("E6")
@pytest.mark.parametrize("how", list(m.Leaving))
def test_leaving_is_confirmed_though_the_answer_was_lost(wire_up, how):
    wiring = wire_up()
    writer, other = wiring.writer(), wiring.writer("other")
    other.advance(1)
    writer.append("0", 0)
    writer.deaf.add("0")
    ticket = writer.leave(how)
    writer.cut()
    writer.connect()
    assert Moved(ticket) in writer.told
    assert writer.machine.over
    assert lower(wiring) == [1]


@pytest.mark.rule("E6")
def test_a_group_begins_at_its_own_numbers_and_a_rerun_is_recognised(wire_up):
    wiring = wire_up()
    wiring.writer("driver")
    for attempt in (1, 2):
        task = wiring.writer("driver/0", session=attempt, under="driver")
        task.machine.appends.start_group(7)
        task.append("0", 0, b"a", b"b")
        assert [told.position.seq for told in task.of(Acked)] == [0, 1]
    numbers = [event for event in wiring.log["0"] if isinstance(event, m.Data)]
    assert len(numbers) == 2
    assert task.machine.number("0") == (7 << GROUP) + 1


def test_the_window_bounds_what_is_on_its_way_but_lets_one_append_pass(wire_up):
    wiring = wire_up(window=1_000)
    writer = wiring.writer()
    writer.hold_back("0")
    writer.append("0", 0, bytes(5_000), bytes(500), bytes(600))
    assert len(writer.held_back["0"]) == 1
    assert (writer.machine.outstanding, writer.machine.appends.waiting_bytes) == (3, 1_100)
    writer.let_through("0")
    assert (writer.machine.outstanding, len(writer.of(Acked))) == (0, 3)


def test_heartbeats_go_to_every_segment(wire_up):
    wiring = wire_up(segments="01", writer_timeout=5.0)
    writer = wiring.writer()
    wiring.tick(20)
    assert writer.errors() == []
    assert [wiring.publishers[segment].writers for segment in "01"] == [["w"], ["w"]]


# ---- the end of a session ----


@pytest.mark.rule("E6")
def test_a_fenced_writer_fails_everything_and_stops(wire_up):
    wiring = wire_up(segments="01")
    writer = wiring.writer(session=1)
    writer.hold_back("1")
    (append,) = writer.append("1", 0)
    move = writer.advance(1)
    wiring.writer(session=2)
    assert {told.ticket for told in writer.of(Failed)} == {append, move}
    assert [told.error.code for told in writer.of(Over)] == ["writer_fenced"]
    assert writer.machine.over
    wiring.tick(3)
    assert writer.machine.take() == []


@pytest.mark.rule("E4", "E46")
@pytest.mark.parametrize("waits_for", ["an append", "a move", "to finish"])
def test_a_writer_whose_program_gives_up_leaves_where_it_is_open(wire_up, waits_for):
    """One publisher of two answers no more; at the other one nothing is kept for a writer that never comes back."""
    wiring = wire_up(segments="01", hold_lost=True)
    other, reader = wiring.writer("other"), wiring.reader()
    writer = wiring.writer()
    writer.append("0", 3, b"a")
    writer.hold_back("1")
    if waits_for == "an append":
        writer.append("1", 3, b"b")
    elif waits_for == "a move":
        writer.advance(4)
    else:
        writer.leave(m.Leaving.FINISH)
    writer.machine.give_up(TimedOut("no publisher answers"), leaves=True)
    wiring.run()
    assert writer.machine.over
    other.advance(5)
    assert lower(wiring, "0") == [5]
    writer.let_through("1")  # it goes on, and reads what it was sent
    assert lower(wiring, "1") == [5]
    wiring.tick(40, step=0.9)
    assert [each.writer for each in wiring.publishers["0"].holders(wiring.now)] == ["other"]
    # What it moved past or finished was acknowledged everywhere before, so that is whole (E1).
    assert reader.epochs() == [EpochWasAborted(3) if waits_for == "an append" else (3, [b"a"])]


@pytest.mark.rule("E4")
def test_a_writer_that_gives_up_while_it_opens_again_leaves_also_where_the_open_is_on_its_way(wire_up):
    wiring = wire_up(segments="01")
    other, writer = wiring.writer("other"), wiring.writer(connect=False)
    writer.connect("0")
    writer.hold_back("1")
    writer.connect("1")
    writer.machine.give_up(TimedOut("no publisher answers"), leaves=True)
    wiring.run()
    writer.let_through("1")
    other.advance(5)
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([5], [5])


@pytest.mark.rule("E4", "E6")
@pytest.mark.parametrize("how", ["detaches", "was withdrawing"])
def test_a_writer_whose_program_gives_up_leaves_to_the_next_session_what_is_meant_for_it(wire_up, how):
    wiring = wire_up(segments="01")
    other, earlier = wiring.writer("other"), wiring.writer()
    earlier.append("0", 3)
    if how == "detaches":
        earlier.machine.give_up(TimedOut("no publisher answers"), leaves=False)
    else:
        earlier.cut()
        later = wiring.writer(session=2, connect=False)
        later.connect("0")
        later.hold_back("1")
        later.connect("1")
        later.machine.withdraw()
        later.machine.give_up(TimedOut("no publisher answers"), leaves=True)
    wiring.run()
    other.advance(5)
    assert lower(wiring, "0") == [0]


@pytest.mark.rule("E4")
def test_an_abort_does_not_wait_for_appends(wire_up):
    wiring = wire_up(segments="01")
    writer, other = wiring.writer(), wiring.writer("other")
    reader = wiring.reader()
    writer.append("0", 0, b"a")
    writer.hold_back("1")
    writer.append("1", 0, b"b")
    writer.leave(m.Leaving.ABORT)
    other.advance(1)
    writer.let_through("1")
    assert reader.epochs() == [EpochWasAborted(0)]


@pytest.mark.rule("E4")
def test_what_waited_for_room_is_not_sent_after_an_abort(wire_up):
    wiring = wire_up(window=1)
    writer, other = wiring.writer(), wiring.writer("other")
    record_all(wiring.publishers["0"])
    writer.hold_back("0")
    writer.append("0", 0, b"sent", b"waits")
    writer.machine.leave(m.Leaving.ABORT)
    wiring.run()
    assert [type(message) for message in writer.held_back["0"]] == [m.Append, m.Leave]
    writer.let_through("0")
    assert [event.payload for event in wiring.log["0"] if isinstance(event, m.Data)] == [b"sent"]
    assert (writer.machine.over, writer.machine.outstanding, writer.machine.appends.waiting_bytes) == (True, 0, 0)
    other.advance(1)
    assert lower(wiring) == [1]


@pytest.mark.rule("E4")
@pytest.mark.parametrize("breaks", [True, False], ids=["the connection breaks", "it does not break"])
def test_who_leaves_by_an_exception_waits_for_no_answer_that_cannot_come(breaks):
    """A leave overtakes an abort that waits for the catalog, and nothing is opened again where it took effect."""
    machine = WriterMachine("uid", TimeShape.parse("int"), "01", "w", 1, now=0.0)
    for segment in "01":
        machine.connected(segment)
    for effect in cast("list[Send]", machine.take()):
        ask = cast("m.Open", effect.message)
        machine.receive(effect.segment, m.Opened(ask.op, effect.segment, 1, (0,), (0,), -1, (), (), 1 << 20, True))
    abort, leave = machine.abort(0, awaited=True), machine.leave(m.Leaving.ABORT, awaited=True)
    sent = [(effect.segment, effect.message) for effect in cast("list[Send]", machine.take())]
    aborts = {segment: ask.op for segment, ask in sent if isinstance(ask, m.Abort)}
    leaves = {segment: ask.op for segment, ask in sent if isinstance(ask, m.Leave)}
    machine.receive("0", m.Done(leaves["0"], "0"))
    if breaks:
        machine.disconnected("0")
        machine.connected("0")
        assert machine.take() == []
    else:
        machine.receive("0", m.Refused(aborts["0"], "capability", "writer 'w' holds [] and cannot abort 0"))
    assert not machine.over
    for op in (aborts["1"], leaves["1"]):
        machine.receive("1", m.Done(op, "1"))
    assert machine.over
    told = machine.reports()
    assert [report.ticket for report in told if isinstance(report, Failed)] == [abort]
    assert [report.ticket for report in told if isinstance(report, Moved)] == [leave]


def test_a_publisher_that_asks_for_a_new_connection_gets_one(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.machine.receive("0", m.Lost("0", "remote_protocol", "append 3 leaves a hole"))
    assert [type(effect) for effect in writer.machine.take()] == [Reconnect]
    assert not writer.machine.over
    writer.cut()
    writer.connect()
    writer.append("0", 0, b"a")
    assert len(writer.of(Acked)) == 1


@pytest.mark.rule("E4")
def test_what_was_under_way_to_an_epoch_that_its_writer_aborts_stops_no_later_move(wire_up):
    wiring = wire_up(segments="01", window=1_000)
    writer, reader = wiring.writer(), wiring.reader()
    writer.hold_back("1")
    full, unsent = writer.append("1", 4, bytes(1_500)) + writer.append("1", 3, b"a")
    writer.machine.abort(3)  # overtakes the append, for which the window has no room
    wiring.run()
    move = writer.advance(5)
    writer.let_through("1")
    assert [told.ticket for told in writer.of(Acked)] == [full]
    assert [(told.ticket, told.error.code) for told in writer.of(Failed)] == [(unsent, "epoch_aborted")]
    assert move in {told.ticket for told in writer.of(Moved)}
    writer.machine.raise_failure()
    assert (list(writer.machine.held), writer.machine.pending_epochs) == ([5], ())
    assert reader.epochs() == [EpochWasAborted(3), (4, [bytes(1_500)])]


@pytest.mark.rule("E6")
def test_what_answers_the_session_before_on_the_same_connection_is_not_taken_for_the_own(wire_up):
    """A publisher may be slower to refuse a session than the catalog is to give the next one."""
    first, others = WriterMachine("uid", TimeShape.parse("int"), "01", "w", 5, now=0.0), {"0": 1, "1": 2}
    for segment in others:
        first.connected(segment)
    again = WriterMachine("uid", TimeShape.parse("int"), "01", "w", 9, now=0.0, first=False, after=first.asked)
    for segment in others:
        again.connected(segment)
    effects: list[Any] = again.take()
    asked = {effect.segment: effect.message.op for effect in effects}
    assert not set(asked.values()) & set(others.values())
    again.receive("1", m.Refused(others["1"], "writer_fenced", "a newer session has opened"))
    late = m.Opened(others["0"], "0", 1, (0,), (0,), 3, (), (), 1 << 20, True)
    again.receive("0", late)
    assert not again.over
    assert not any(map(again.is_open_at, "01"))
    for segment, op in asked.items():
        again.receive(segment, late._replace(op=op, segment=segment, number=-1))
    assert all(map(again.is_open_at, "01"))


def test_a_change_of_state_that_the_table_does_not_have_is_a_defect_and_changes_nothing(wire_up):
    life = wire_up().writer().machine.life
    with pytest.raises(LocalProtocolError, match="no transition from state 'open'"):
        life.enter(WriterSessionEvent.JOINED)
    assert life.state is WriterSessionState.OPEN
