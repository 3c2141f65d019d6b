"""What becomes of writers when answers are lost, publishers restart, or one segment is slow; each case broke once."""

from collections.abc import Callable
from typing import Any

import pytest

from epochal.errors import AppendsLost, EpochalError, NoPublisher, RemoteProtocolError, StreamGone, WriterLost
from epochal.protocol import messages as m
from epochal.protocol.subscriber.effects import EpochWasAborted
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import TimeShape
from epochal.protocol.writer.effects import Moved, Over, Reconnect, SessionReady
from epochal.protocol.writer.machine import WriterMachine

WireUp = Callable[..., Any]


@pytest.mark.rule("E7")
def test_a_finish_whose_answer_was_lost_is_not_cancelled_by_asking_again(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.deaf.add("0")
    writer.hold_back("1")
    ticket = writer.leave(m.Leaving.FINISH)
    writer.cut("0")
    wiring.catalog_answers = False
    writer.connect("0")
    assert all(report.finishing for _, report in wiring.reports), "it is not cancelled for a moment either"
    wiring.catalog_answers = True
    writer.let_through("1")
    assert Moved(ticket) in writer.told
    assert all(publisher.complete for publisher in wiring.publishers.values())


@pytest.mark.rule("E7")
def test_a_finish_whose_answer_came_after_completion_still_succeeds(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.deaf.add("0")
    ticket = writer.leave(m.Leaving.FINISH)
    assert wiring.publishers["0"].complete
    writer.cut("0")
    writer.connect("0")
    assert Moved(ticket) in writer.told
    assert writer.errors() == []


@pytest.mark.rule("E7")
def test_a_finish_in_the_middle_of_a_restart_is_not_cancelled_by_coming_back(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.hold_back("1")
    ticket = writer.leave(m.Leaving.FINISH)
    writer.cut("0", "1")
    wiring.start_publisher("0", 2, lower=[0], finishing=True)
    writer.connect("0")
    assert not wiring.publishers["0"].writers  # it has left there
    writer.connect("1")
    assert Moved(ticket) in writer.told
    assert all(publisher.complete for publisher in wiring.publishers.values())


@pytest.mark.rule("E7")
def test_a_finish_counts_though_others_were_still_awaited_after_a_restart(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=3.0)
    wiring.start_publisher("0", 2, lower=[4], known_writers=["w", "gone"])
    wiring.writer().leave(m.Leaving.FINISH)
    assert not wiring.publishers["0"].complete
    wiring.tick(4)
    assert wiring.publishers["0"].complete


@pytest.mark.rule("E7", "E6")
def test_an_old_session_that_comes_back_cancels_no_finish(wire_up: WireUp) -> None:
    wiring = wire_up()
    old = wiring.writer("w", 1, connect=False)
    wiring.catalog_answers = False
    wiring.writer("w", 2).leave(m.Leaving.FINISH)
    old.connect()
    assert old.errors() == ["writer_fenced"]
    wiring.catalog_answers = True
    wiring.run()
    assert wiring.publishers["0"].complete


@pytest.mark.rule("E5", "E11")
def test_writers_that_had_opened_before_a_restart_count_though_one_never_comes_back(wire_up: WireUp) -> None:
    wiring = wire_up(min_writers=2, writer_timeout=3.0)
    wiring.start_publisher("0", 2, lower=[0], known_writers=["w", "gone"])
    writer = wiring.writer()
    writer.advance(5)
    wiring.tick(4)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [5]


@pytest.mark.rule("E5")
def test_a_writer_is_not_lost_while_it_waits_for_one_slow_segment(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01", writer_timeout=3.0)
    writer = wiring.writer(connect=False)
    writer.connect("0")
    wiring.tick(10)
    writer.connect("1")
    assert [type(told) for told in writer.told] == [SessionReady]


@pytest.mark.rule("E3")
def test_what_a_lost_writer_appended_is_aborted_though_its_next_session_reconnected_while_opening(
    wire_up: WireUp,
) -> None:
    wiring = wire_up(segments="01", writer_timeout=3.0)
    other = wiring.writer("other")
    first = wiring.writer()
    first.append("1", 5)
    first.cut("0")  # it is given up at 0, where it appended nothing
    for _ in range(8):
        wiring.tick(0.5)
        wiring.publishers["1"].receive(first.peers["1"], m.Alive("1"), wiring.now)
    other.advance(7)  # nobody holds 5 at segment 0 any more
    second = wiring.writer("w", 2, connect=False)
    second.connect("0")
    second.cut("0")
    second.connect("0", "1")
    assert second.of(SessionReady) == [SessionReady((7,))]
    assert 5 in [time for event in wiring.log["1"] if type(event) is m.Aborted for time in event.times]
    assert second.errors() == []
    second.advance(8)
    assert second.errors() == []


@pytest.mark.rule("E3")
def test_what_a_lost_writer_appended_is_aborted_though_the_next_session_died_before_it_was_open(
    wire_up: WireUp,
) -> None:
    wiring = wire_up(segments="01", writer_timeout=3.0)
    other = wiring.writer("other")
    first = wiring.writer()
    first.append("1", 5)
    first.cut("0")  # it is given up at 0 alone
    for _ in range(8):
        wiring.tick(0.5)
        wiring.publishers["1"].receive(first.peers["1"], m.Alive("1"), wiring.now)
    other.advance(7)
    wiring.writer("w", 2, connect=False).connect("0")  # granted anew there; dies before it hears from 1
    third = wiring.writer("w", 3)
    assert third.of(SessionReady) == [SessionReady((7,))]
    assert 5 in [time for event in wiring.log["1"] if type(event) is m.Aborted for time in event.times]


@pytest.mark.rule("E6", "E1")
def test_a_move_that_was_cut_in_half_is_completed_by_the_next_session(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    first = wiring.writer()
    first.append("1", 5)
    first.advance(1)
    first.hold_back("1")
    first.advance(6)  # reaches segment 0 alone
    second = wiring.writer("w", 2)
    assert second.of(SessionReady) == [SessionReady((6,))]
    assert not [event for event in wiring.log["1"] if type(event) is m.Aborted]


@pytest.mark.rule("E2", "E11")
def test_what_was_aborted_stays_aborted_through_every_restart(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 3)
    writer.machine.abort(4)
    wiring.run()
    for incarnation in (2, 3):
        writer.cut()
        publisher = wiring.start_publisher("0", incarnation, lower=[0], known_writers=["w"])
        writer.connect()
        assert publisher.progress.aborted == {3, 4}
    with pytest.raises(AppendsLost):
        writer.machine.raise_failure()
    writer.machine.raise_failure()  # told once


@pytest.mark.rule("E11", "E6")
@pytest.mark.parametrize("acknowledged", [True, False])
def test_what_one_publisher_lost_is_pending_at_no_other(wire_up: WireUp, acknowledged: bool) -> None:
    """Also where the other one acknowledges its part of the epoch only later."""
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.append("0", 3)
    writer.append("1", 4)
    if not acknowledged:
        writer.hold_back("1")
    writer.append("1", 3)
    writer.cut("0")
    wiring.start_publisher("0", 2, lower=[0], known_writers=["w"])
    writer.connect("0")
    if not acknowledged:
        writer.let_through("1")
    assert writer.machine.pending_epochs == (4,)
    with pytest.raises(AppendsLost):
        writer.machine.raise_failure()


@pytest.mark.rule("E11", "E3")
def test_a_writer_that_a_new_incarnation_went_on_without_is_lost_there(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    known, unknown = wiring.writer("known"), wiring.writer("unknown")
    unknown.append("0", 3)
    unknown.append("1", 3)
    known.advance(9)
    for writer in (known, unknown):
        writer.cut("0")
    wiring.start_publisher("0", 2, lower=[0], known_writers=["known"])  # the report came before the other one opened
    known.connect("0")
    unknown.connect("0")
    (over,) = unknown.of(Over)
    assert isinstance(over.error, WriterLost)
    assert 3 in [time for event in wiring.log["1"] if type(event) is m.Aborted for time in event.times]
    assert not unknown.of(Reconnect)


@pytest.mark.rule("E11")
def test_a_shared_capability_ends_where_others_appends_were_lost(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    holder = wiring.writer("query", shared=True)
    task = wiring.writer("query/0", under="query")
    task.append("0", 0, b"lost")
    task.append("1", 0, b"kept")
    task.cut("0", "1")
    holder.cut("0")
    wiring.start_publisher("0", 2, lower=[0], known_writers=["query"])
    holder.connect("0")
    wiring.run()
    assert [type(told.error) for told in holder.told if isinstance(told, Over)] == [AppendsLost]
    assert wiring.publishers["1"].progress.aborted == {0}
    late = wiring.reader()
    wiring.writer("query", session=2).advance(1)
    assert late.epochs() == [], "the part that is left is never whole"


def opened_at(segment: str, incarnation: int) -> m.Opened:
    return m.Opened(1, segment, incarnation, (0,), (0,), -1, (), (), 1 << 20, True)


def alone(**options: Any) -> WriterMachine:
    """A writer that has asked one publisher, which the test plays, to open."""
    machine = WriterMachine("uid", TimeShape(), ["0"], "w", 1, now=0.0, **options)
    machine.connected("0")
    machine.take()
    return machine


@pytest.mark.rule("E48")
@pytest.mark.parametrize("error", [StreamGone, NoPublisher, RemoteProtocolError])
def test_a_publisher_that_serves_something_else_ends_no_session(error: type[EpochalError]) -> None:
    machine = alone()
    machine.receive("0", opened_at("0", 7))
    machine.appends.append("0", 0, b"", 1, b"x")
    machine.disconnected("0")
    machine.connected("0")
    machine.take()
    machine.receive("0", m.Refused(0 if error is RemoteProtocolError else 2, error.code, "no"))
    assert [type(effect) for effect in machine.take()] == [Reconnect]
    assert (machine.over, machine.outstanding, machine.wrong_addresses) == (False, 1, 1)


@pytest.mark.rule("E48")
def test_a_publisher_that_hears_of_a_deletion_leaves_it_to_the_catalog_to_say_so() -> None:
    machine = alone()
    machine.receive("0", opened_at("0", 7))
    machine.take()
    machine.receive("0", m.Lost("0", StreamGone.code, "it was deleted"))
    assert [type(effect) for effect in machine.take()] == [Reconnect]
    assert (machine.over, machine.wrong_addresses) == (False, 0)


@pytest.mark.rule("E12")
def test_a_writer_refuses_an_older_publisher_over_reconnects_and_in_its_next_session() -> None:
    machine = alone()
    machine.receive("0", opened_at("0", 7))
    assert machine.seen == {"0": 7}
    machine.disconnected("0")
    machine.connected("0")
    for writer in (machine, alone(seen=machine.seen)):
        writer.take()
        writer.receive("0", opened_at("0", 6))
        assert [type(effect) for effect in writer.take()] == [Reconnect]
        assert not writer.is_open_at("0")
        writer.receive("0", opened_at("0", 7))
        assert writer.is_open_at("0")


# ---- the last holder is lost after another has closed ----


def _ahead_and_behind(wiring: Any, segment: str = "0") -> Any:
    """One writer that holds 0, after another that had appended at 11, moved to 12 and closed."""
    behind, ahead = wiring.writer("behind"), wiring.writer("ahead")
    ahead.append(segment, 11, b"whole")
    ahead.advance(12)
    ahead.leave(m.Leaving.CLOSE)
    return behind


@pytest.mark.rule("E3")
def test_a_last_holder_that_is_lost_leaves_what_the_last_one_to_close_had_completed(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=5.0)
    reader = wiring.reader()
    behind = _ahead_and_behind(wiring)
    behind.append("0", 3, b"half")
    wiring.writers.remove(behind)
    wiring.tick(6)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [12]
    assert reader.epochs() == [EpochWasAborted(3), (11, [b"whole"])]
    assert wiring.writer("next").of(SessionReady) == [SessionReady((12,))]


@pytest.mark.rule("E3")
def test_a_last_holder_that_is_lost_takes_back_nothing_of_its_own(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=5.0)
    behind = _ahead_and_behind(wiring)
    behind.advance(20)
    wiring.writers.remove(behind)
    wiring.tick(6)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [20]


@pytest.mark.rule("E3")
def test_in_a_partial_order_a_lost_last_holder_leaves_the_join(wire_up: WireUp) -> None:
    wiring = wire_up("(int, int)", writer_timeout=5.0)
    behind, ahead = wiring.writer("behind"), wiring.writer("ahead")
    ahead.advance((0, 5))
    behind.advance((3, 0))
    ahead.leave(m.Leaving.CLOSE)
    wiring.writers.remove(behind)
    wiring.tick(6)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [(3, 5)]


@pytest.mark.rule("E3", "E4")
def test_a_last_holder_that_leaves_by_an_exception_leaves_as_much_as_one_that_is_lost(wire_up: WireUp) -> None:
    wiring = wire_up()
    behind = _ahead_and_behind(wiring)
    behind.leave(m.Leaving.ABORT)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [12]


@pytest.mark.rule("E3")
def test_a_last_holder_that_closes_leaves_what_it_held_itself(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=5.0)
    behind = _ahead_and_behind(wiring)
    behind.leave(m.Leaving.CLOSE)
    assert wiring.writer("next").of(SessionReady) == [SessionReady((0,))]


@pytest.mark.rule("E3", "E46")
def test_a_last_holder_that_is_released_by_hand_leaves_what_the_last_one_to_close_had_completed(
    wire_up: WireUp,
) -> None:
    wiring = wire_up(writer_timeout=5.0, hold_lost=True)
    behind = _ahead_and_behind(wiring)
    wiring.writers.remove(behind)
    wiring.tick(6)
    publisher = wiring.publishers["0"]
    assert list(publisher.progress.lower.frontier) == [0]
    publisher.release({"behind": 1})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [12]


@pytest.mark.rule("E3", "E11")
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_last_holder_that_is_lost_with_the_memory_leaves_what_the_last_one_to_close_had_completed(
    wire_up: WireUp, comes_back: bool
) -> None:
    wiring = wire_up(segments="01", writer_timeout=5.0)
    behind = _ahead_and_behind(wiring, "1")
    wiring.writers.remove(behind)
    wiring.lose_memory("0", marks=wiring.stored["0"].marks)
    reader = wiring.reader(From.START)
    if comes_back:  # another than the one that is awaited; it moves on and closes as well
        again = wiring.writer("again")
        again.advance(15)
        again.leave(m.Leaving.CLOSE)
    wiring.tick(7)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [15 if comes_back else 12]
    assert reader.epochs() == [(11, [b"whole"])]


@pytest.mark.rule("E3", "E11")
def test_nothing_is_left_for_writers_that_are_lost_while_one_waits_for_the_catalog(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=5.0)
    behind, ahead = wiring.writer("behind"), wiring.writer("ahead")
    behind.advance(3)
    behind.append("0", 4)
    ahead.advance(12)
    ahead.leave(m.Leaving.CLOSE)
    marks = wiring.stored["0"].marks
    wiring.lose_memory("0", marks=marks, horizon=())
    wiring.catalog_answers = False
    behind.connect("0")  # it names what it appended, which is to be recorded before it is aborted
    wiring.tick(7)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [3]
    wiring.catalog_answers = True
    wiring.run()
    with pytest.raises(AppendsLost):
        behind.machine.raise_failure()
    behind.advance(5)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [5]
    assert "writer_lost" not in behind.errors()


@pytest.mark.rule("E3", "E11")
@pytest.mark.parametrize("first", ["a task", "its writer"])
def test_opens_that_waited_for_the_same_record_are_not_taken_for_lost_while_they_are_answered(
    wire_up: WireUp, first: str
) -> None:
    wiring = wire_up(writer_timeout=5.0)
    writer = wiring.writer("w")
    writer.append("0", 4)
    task = wiring.writer("task", under="w")
    task.append("0", 4)
    other = wiring.writer("other")
    other.advance(12)
    other.leave(m.Leaving.CLOSE)
    wiring.lose_memory("0", marks=wiring.stored["0"].marks, horizon=())
    wiring.catalog_answers = False
    for each in (task, writer) if first == "a task" else (writer, task):
        each.connect("0")  # both name what they appended, which is to be recorded before it is aborted
    wiring.tick(7)
    wiring.catalog_answers = True
    wiring.run()
    assert "writer_lost" not in writer.errors() + task.errors()
    assert list(wiring.publishers["0"].progress.lower.frontier) == [0]
    with pytest.raises(AppendsLost):
        writer.machine.raise_failure()
    writer.advance(5)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [5]
