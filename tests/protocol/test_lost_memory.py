"""What a publisher without a log takes with it when it dies, and that nothing of it is taken for whole afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.protocol.recorded import record_all

from epochal.protocol import messages as m
from epochal.protocol.blockers import HolderKind
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.history import EVENT_OVERHEAD, empty_state
from epochal.protocol.progress import EpochState
from epochal.protocol.publisher.appends import AppendHandler
from epochal.protocol.publisher.effects import Push, Reply, ReportFinishing, SendAnswers
from epochal.protocol.publisher.horizon import Horizon, Marks, Record
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.writer_state import WriterState
from epochal.protocol.subscriber.effects import EpochWasAborted, GapFound
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import TimeShape
from epochal.protocol.writer.effects import Over

WireUp = Callable[..., Any]


def fresh(**settings: Any) -> SegmentPublisher:
    """A publisher by itself, of which the catalog has recorded nothing yet."""
    limits = PublisherSettings(TimeShape.parse(settings.pop("shape", "int")), **settings.pop("limits", {}))
    return SegmentPublisher("uid", "0", limits, incarnation=2, now=0.0, **settings)


def opening(writer: str, session: int = 1, resume: m.Resume | None = None) -> m.Open:
    return m.Open(1, "uid", "0", writer, session, None, resume)


def replies(publisher: SegmentPublisher, peer: bytes) -> list[Any]:
    return [effect.message for effect in publisher.take() if isinstance(effect, Reply) and effect.peer == peer]


def finish_reports(publisher: SegmentPublisher) -> list[bool]:
    """The reports that are sent to the catalog: True says that the segment is finishing, False cancels that."""
    return [effect.finishing for effect in publisher.take() if isinstance(effect, ReportFinishing)]


def pass_time(publisher: SegmentPublisher, seconds: float) -> None:
    """Let time pass without a stall of the loop."""
    for tenth in range(1, int(seconds * 10) + 1):
        publisher.tick(tenth / 10)


def answer(publisher: SegmentPublisher, record: Record | None) -> None:
    """The catalog has stored a record that the publisher made."""
    assert record is not None
    publisher.recorded(record.number, 0.0)


def times(found: list[Any]) -> list[Any]:
    """What a reader was given: whole epochs with their payloads, and aborts."""
    return [("aborted", each.time) if isinstance(each, EpochWasAborted) else each for each in found]


# ---- the gates ----


@pytest.mark.rule("E11")
def test_no_epoch_becomes_active_before_the_catalog_has_it_in_the_horizon(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    wiring.catalog_answers = False
    writer.append("0", 5, b"a", b"b")
    assert wiring.log["0"] == []
    assert writer.machine.outstanding == 2
    wiring.catalog_answers = True
    wiring.run()
    assert [event.payload for event in wiring.log["0"]] == [b"a", b"b"]
    assert wiring.stored["0"].horizon == (5,)
    assert writer.machine.outstanding == 0


@pytest.mark.rule("E11")
def test_while_the_catalog_is_away_what_the_horizon_covers_goes_on(wire_up: WireUp) -> None:
    wiring = wire_up()
    one, other = wiring.writer("w1"), wiring.writer("w2")
    one.append("0", 5)
    wiring.catalog_answers = False
    one.append("0", 6)
    other.append("0", 4)
    assert (one.machine.outstanding, other.machine.outstanding) == (1, 0)
    for writer in (one, other):
        writer.machine.advance(6)
    wiring.run()
    assert list(wiring.publishers["0"].progress.lower.frontier) == [0]
    wiring.tick(60)
    assert one.errors() == [], "who waits for the catalog is not lost"
    wiring.catalog_answers = True
    wiring.run()
    assert list(wiring.publishers["0"].progress.lower.frontier) == [6]


@pytest.mark.rule("E11")
def test_appends_that_wait_stay_in_their_order_when_an_earlier_record_is_answered_first(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    wiring.catalog_answers = False
    wiring.report("0")  # asked for before there was anything to append
    writer.append("0", 5, b"a", b"b")
    wiring.catalog_answers = True
    wiring.run()
    assert [event.payload for event in wiring.log["0"]] == [b"a", b"b"]
    assert writer.errors() == []


@pytest.mark.pure("replaces a method to see its calls")
@pytest.mark.rule("E11")
def test_what_waits_still_is_left_in_line_as_it_is(wire_up: WireUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast writer may have tens of thousands in line; each record lets some of them go."""
    wiring = wire_up()
    writer, publisher = wiring.writer(), wiring.publishers["0"]
    wiring.catalog_answers = False
    writer.append("0", 5, b"a", b"b")
    record = publisher.record()
    assert record is not None
    assert record.horizon == (5,)
    writer.append("0", 6, *[b"c"] * 100)
    waiting, take = publisher.waiting_bytes, AppendHandler.take
    looked_at: list[m.Append] = []

    def taken(self: AppendHandler, state: WriterState, append: m.Append) -> None:
        looked_at.append(append)
        take(self, state, append)

    monkeypatch.setattr(AppendHandler, "take", taken)
    publisher.recorded(record.number, wiring.now)
    assert len(looked_at) == 3, "two are logged; the third still waits, and nothing after it is looked at"
    assert publisher.waiting_bytes == waiting - 2 * (EVENT_OVERHEAD + 1)
    monkeypatch.undo()
    wiring.catalog_answers = True
    wiring.run()
    assert [event.payload for event in wiring.log["0"]] == [b"a", b"b", *[b"c"] * 100]
    assert (publisher.waiting_bytes, writer.errors()) == (0, [])


@pytest.mark.rule("E4", "E11")
def test_moves_go_past_appends_that_wait_and_who_leaves_by_an_exception_waits_for_nothing(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    writer.append("0", 1)
    wiring.catalog_answers = False
    writer.hold_back("1")
    writer.machine.appends.append("1", 1, b"", 1, b"late")
    writer.machine.advance(2)  # waits for that one
    writer.append("0", 5)  # waits for the catalog, and was sent first
    record_all(wiring.publishers["1"])
    writer.let_through("1")
    assert list(wiring.publishers["0"]._log.held.frontier) == [2], "the move was taken"
    writer.machine.abort(9)
    wiring.run()
    writer.leave(m.Leaving.ABORT)
    wiring.catalog_answers = True
    wiring.run()
    assert writer.machine.over


@pytest.mark.rule("E11")
def test_many_small_appends_may_wait_as_long_as_the_window_has_room(wire_up: WireUp) -> None:
    wiring = wire_up(window=100)
    writer = wiring.writer()
    wiring.catalog_answers = False
    for _ in range(99):
        writer.append("0", 5, b"x")
    assert wiring.publishers["0"].waiting_bytes > 99 * 200
    wiring.catalog_answers = True
    wiring.run()
    assert writer.machine.outstanding == 0
    assert writer.errors() == []


@pytest.mark.rule("E4", "E11")
def test_moves_that_wait_after_an_abort_are_counted_and_all_answered() -> None:
    publisher = fresh()
    publisher.receive(b"peer", opening("w"), 0.0)
    publisher.take()
    publisher.receive(b"peer", m.Abort(1, "0", (9,)), 0.0)
    for op in range(2, 1002):
        publisher.receive(b"peer", m.Hold(op, "0", (1,)), 0.0)
    assert publisher.waiting_bytes > 1000 * 200, "the shell reads no more of anybody once this is too much"
    publisher.receive(b"peer", m.Leave(1002, "0", m.Leaving.ABORT), 0.0)
    assert publisher.waiting_bytes > 1000 * 200
    record_all(publisher)
    assert publisher.waiting_bytes == 0
    answered = [effect.message for effect in publisher.take() if isinstance(effect, Reply)]
    assert {each.op for each in answered if isinstance(each, m.Done | m.Refused)} == set(range(1, 1003))


@pytest.mark.rule("E11")
@pytest.mark.parametrize("shape", ["int", "(int, int)"])
def test_a_frontier_is_reported_once_a_crash_could_not_take_it_back(wire_up: WireUp, shape: str) -> None:
    """Of ints, one past the horizon at most; of a partial order, what is recorded."""
    near, far = (6, 9) if shape == "int" else ((6, 0), (6, 1))
    wiring = wire_up(shape)
    writer = wiring.writer()
    if shape == "int":
        writer.append("0", 5)
    else:
        writer.advance((6, 0))
    wiring.catalog_answers = False
    writer.advance(near)
    publisher = wiring.publishers["0"]
    assert list(publisher.progress.lower.frontier) == [near]
    writer.advance(far)
    assert list(publisher.progress.lower.frontier) == [near]
    assert [holder.kind for holder in publisher.holders(wiring.now)] == [HolderKind.RECORDING, HolderKind.WRITER]
    wiring.catalog_answers = True
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [far]


@pytest.mark.rule("E11")
def test_who_opens_while_a_frontier_is_being_recorded_is_granted_that_one(wire_up: WireUp) -> None:
    wiring = wire_up()
    first = wiring.writer("w1")
    wiring.catalog_answers = False
    first.advance(9)
    second = wiring.writer("w2")
    assert second.machine.is_open_at("0")
    assert list(second.machine.held) == [9], "a crash may begin there, once it is recorded"
    assert list(wiring.publishers["0"].progress.lower.frontier) == [0]


@pytest.mark.rule("E11")
@pytest.mark.parametrize("shape", ["int", "(int, int)"])
def test_a_frontier_that_moves_faster_than_it_is_recorded_is_reported_all_the_same(shape: str) -> None:
    publisher = fresh(shape=shape)
    publisher.receive(b"peer", opening("w"), 0.0)
    reported = []
    for number in range(1, 40):
        record = publisher.record()
        time = number if shape == "int" else (number, 0)
        publisher.receive(b"peer", m.Hold(number, "0", (time,)), 0.0)
        answer(publisher, record)  # of where it was before the last move
        reported.append(list(publisher.progress.lower.frontier))
    assert reported[-1] == [38 if shape == "int" else (38, 0)]
    assert len(reported) == len({str(each) for each in reported})


@pytest.mark.rule("E5", "E11")
def test_who_opens_while_frontiers_move_fast_is_not_kept_waiting() -> None:
    publisher = fresh()
    publisher.receive(b"one", opening("w1"), 0.0)
    publisher.receive(b"one", m.Hold(2, "0", (7,)), 0.0)
    publisher.take()
    publisher.receive(b"two", opening("w2"), 0.0)
    [opened] = replies(publisher, b"two")
    assert (opened.held, opened.frontier) == ((7,), (0,))


@pytest.mark.rule("E11")
def test_who_comes_back_to_what_is_over_is_refused_though_that_is_not_reported_yet() -> None:
    publisher = fresh()
    publisher.receive(b"one", opening("w1"), 0.0)
    publisher.receive(b"one", m.Hold(2, "0", (7,)), 0.0)
    publisher.take()
    publisher.receive(b"two", opening("w2", resume=m.Resume(-1, (5,), ())), 0.0)
    assert [answer.code for answer in replies(publisher, b"two")] == ["writer_lost"]


@pytest.mark.rule("E11")
def test_an_open_that_was_given_up_for_a_newer_session_leaves_nothing_that_waits() -> None:
    publisher = fresh()
    publisher.receive(b"old", opening("w"), 0.0)
    publisher.receive(b"old", m.Abort(2, "0", (9,)), 0.0)
    assert publisher.waiting_bytes > 0
    publisher.receive(b"new", opening("w", 2, m.Resume(-1, (0,), ())), 0.0)
    assert publisher.waiting_bytes == 0


@pytest.mark.rule("E11")
def test_what_one_writer_makes_the_horizon_cover_is_bounded() -> None:
    horizon = Horizon(TimeShape.parse("(int, int)"), [(0, 0)], [])
    most = horizon._most
    for number in range(3 * most):
        horizon.want((number, 3 * most - number))
    made = horizon.record(Antichain([(0, 0)]), Marks())
    assert len(made.horizon) <= most


@pytest.mark.rule("E11")
def test_what_writers_say_is_lost_is_aborted_only_once_that_is_recorded() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1", "w2"])
    publisher.receive(b"one", opening("w1", resume=m.Resume(-1, (5,), ())), 0.0)
    assert publisher.record() is None, "nobody knows yet what may be lost"
    publisher.receive(b"two", opening("w2", resume=m.Resume(3, (6,), ())), 0.0)
    publisher.tick(0.1)
    assert not replies(publisher, b"one")
    answer(publisher, publisher.record())
    assert publisher.progress.is_aborted(5), "w2 may have appended there before it left"
    assert [type(each) for each in replies(publisher, b"one")] == [m.Opened]


@pytest.mark.rule("E11")
def test_where_nothing_may_be_lost_nothing_has_to_be_recorded() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1"])
    publisher.receive(b"one", opening("w1", resume=m.Resume(-1, (5,), ())), 0.0)
    publisher.tick(0.1)
    assert [type(each) for each in replies(publisher, b"one")] == [m.Opened]


@pytest.mark.rule("E11")
def test_a_publisher_that_ends_before_it_has_heard_its_writers_says_nothing_of_what_is_lost() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1", "w2"])
    publisher.receive(b"one", opening("w1", resume=m.Resume(-1, (5,), ())), 0.0)
    publisher.drain()
    assert publisher.record(final=True) is None


@pytest.mark.rule("E6", "E11")
def test_a_publisher_that_has_lost_its_volume_knows_by_the_catalog_which_sessions_are_fenced() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w"], sessions={"w": 3}, limits={"durable": True})
    publisher.receive(b"old", opening("w", 2, m.Resume(-1, (5,), ())), 0.0)
    assert [answer.code for answer in replies(publisher, b"old")] == ["writer_fenced"]


@pytest.mark.rule("E11")
def test_nothing_happens_after_the_last_record() -> None:
    publisher = fresh(limits={"writer_timeout": 3.0})
    publisher.receive(b"peer", opening("w"), 0.0)
    publisher.drain()
    last = publisher.record(final=True)
    publisher.receive(b"peer", m.Hold(2, "0", (12,)), 0.1)
    for second in range(1, 6):
        publisher.tick(float(second))
    answer(publisher, last)
    assert list(publisher.progress.lower.frontier) == [0]
    assert publisher.writers == ["w"]


@pytest.mark.rule("E46", "E47")
def test_a_release_of_who_is_not_waited_for_does_not_finish_the_stream() -> None:
    publisher = fresh()
    for name in ("w1", "w2"):
        publisher.receive(name.encode(), opening(name), 0.0)
    publisher.receive(b"w1", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    publisher.receive(b"w2", m.Leave(2, "0", m.Leaving.CLOSE), 0.0)
    publisher.release({"w3": 4})
    assert finish_reports(publisher) == []


@pytest.mark.rule("E7", "E11")
def test_who_waits_for_a_finish_to_be_cancelled_is_heard_of_what_may_be_lost() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1", "w2"], finishing=True)
    publisher.receive(b"one", opening("w1", resume=m.Resume(-1, (5,), ())), 0.0)
    publisher.receive(b"two", opening("w2", resume=m.Resume(3, (6,), ())), 0.0)
    publisher.tick(0.1)
    answer(publisher, publisher.record())
    assert publisher.progress.is_aborted(5), "w2 may have appended there before it left"


@pytest.mark.rule("E4", "E11")
def test_an_open_that_is_withdrawn_while_known_writers_are_waited_for_holds_nothing_back() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1"])
    publisher.receive(b"new", opening("new"), 0.0)
    publisher.receive(b"new", m.Leave(2, "0", m.Leaving.ABORT), 0.0)
    publisher.receive(b"one", opening("w1", resume=m.Resume(3, (6,), ())), 0.0)
    publisher.tick(0.1)
    answer(publisher, publisher.record())
    assert publisher.writers == ["w1"]
    assert m.Done(2, "0") in replies(publisher, b"new")


@pytest.mark.rule("E11", "E47")
def test_a_complete_stream_does_not_wait_for_a_record_of_what_may_be_lost() -> None:
    publisher = fresh(lower=[5], horizon=None, known_writers=["w1"], finishing=True)
    publisher.receive(b"one", opening("w1", resume=m.Resume(3, (7,), (6,))), 0.0)
    publisher.tick(0.1)
    assert publisher.gathering, "what may be lost is not recorded yet"
    publisher.completed()
    assert not publisher.gathering
    assert publisher.history.states() == [empty_state(())], "what a writer that left had at 5 must not pass for whole"
    assert not any(isinstance(effect, Push) for effect in publisher._log.effects), "no event of before is pushed"
    answers = replies(publisher, b"one")
    assert [answer.code for answer in answers] == ["stream_complete"]


@pytest.mark.rule("E7", "E47")
def test_a_writer_that_asked_to_open_in_time_is_not_lost_while_the_catalog_is_away() -> None:
    """Else the answer that the segment is marked as finishing is taken for the one that it no longer is."""
    publisher = fresh(
        lower=[5], known_writers=["w1"], finishing=True, marks=["finished"], limits={"writer_timeout": 3.0}
    )
    publisher.receive(b"one", opening("w1", resume=m.Resume(-1, (5,), ())), 0.0)
    assert finish_reports(publisher) == [False]
    pass_time(publisher, 5.0)
    assert finish_reports(publisher) == [], "the catalog has not said whether it came too late"
    publisher.finishing_answered(1, complete=False, now=5.0)
    (opened,) = replies(publisher, b"one")
    assert opened.held == (5,)


@pytest.mark.rule("E47")
def test_a_stream_is_finishing_once_those_who_asked_to_open_were_refused() -> None:
    publisher = fresh(
        lower=[5], known_writers=["w1"], finishing=True, marks=["finished"], limits={"writer_timeout": 3.0}
    )
    publisher.receive(b"one", opening("w" * 1_000), 0.0)
    assert finish_reports(publisher) == [False]
    pass_time(publisher, 5.0)
    publisher.finishing_answered(1, complete=False, now=5.0)
    assert finish_reports(publisher) == [True], "the one that was awaited never came, and another had finished"


@pytest.mark.rule("E3", "E7", "E47")
def test_who_asks_again_whether_it_has_closed_does_not_finish_the_stream() -> None:
    publisher = fresh()
    for name in ("w1", "w2"):
        publisher.receive(name.encode(), opening(name), 0.0)
    publisher.receive(b"w1", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    publisher.receive(b"w2", m.Leave(2, "0", m.Leaving.CLOSE), 0.0)
    answer(publisher, publisher.record())
    publisher.receive(b"again", opening("w2"), 0.0)  # the answer to its leave was lost
    assert finish_reports(publisher) == []


@pytest.mark.rule("E8", "E11")
def test_who_waits_for_the_catalog_to_be_admitted_is_not_silent() -> None:
    publisher = fresh(limits={"writer_timeout": 3.0})
    publisher.receive(b"old", opening("w"), 0.0)
    publisher.take()
    publisher.receive(b"new", opening("w", 2, m.Resume(-1, (0,), (9,))), 0.0)
    for second in range(9):
        publisher.tick(float(second))
    assert not replies(publisher, b"new"), "9 is aborted, so it must be recorded first"
    assert publisher.writers == ["w"]
    record_all(publisher)
    assert [type(answer) for answer in replies(publisher, b"new")] == [m.Opened]


@pytest.mark.rule("E2", "E11")
def test_an_abort_too_waits_until_a_crash_cannot_forget_it(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    wiring.catalog_answers = False
    writer.machine.abort(7)
    wiring.run()
    assert wiring.log["0"] == []
    wiring.catalog_answers = True
    wiring.run()
    assert [type(event) for event in wiring.log["0"]] == [m.Aborted]
    wiring.lose_memory("0")
    assert wiring.publishers["0"].progress.state(7) is EpochState.ABORTED


# ---- what was active is lost as a whole ----


@pytest.mark.rule("E11", "E18")
def test_an_epoch_that_one_writer_had_left_does_not_complete_without_its_records(wire_up: WireUp) -> None:
    wiring = wire_up(min_writers=2)
    live = wiring.reader()
    one, other = wiring.writer("w1"), wiring.writer("w2")
    one.advance(5)
    other.advance(5)
    other.append("0", 5, b"lost with the memory")
    other.advance(6)
    wiring.report("0")
    wiring.lose_memory("0")
    for reader in wiring.readers:
        reader.rejoin("0")
    late = wiring.reader(From.START)
    one.connect()
    other.connect()
    one.append("0", 5, b"the other half")
    assert one.errors() == ["epoch_aborted"]
    with pytest.raises(Exception, match="aborted"):
        one.machine.raise_failure()
    for writer in (one, other):
        writer.advance(7)
    assert times(live.epochs()) == [("aborted", 5)]
    assert times(late.epochs()) == []
    assert not live.machine.saw_whole(5)
    assert not late.machine.saw_whole(5)
    one.append("0", 7, b"a")
    for writer in (one, other):
        writer.advance(8)
    assert times(live.epochs()) == times(late.epochs()) == [(7, [b"a"])]


@pytest.mark.rule("E11", "E13")
@pytest.mark.parametrize("wanted", [None, (9,)])
def test_an_answer_about_the_past_begins_with_what_was_lost(wire_up: WireUp, wanted: Any) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 5)
    publisher = wiring.lose_memory("0")
    writer.connect()
    writer.append("0", 6)
    wiring.servers["0"].receive(b"reader", m.Since(1, "0", None, 8, wanted), wiring.now)
    opening = next(effect.messages[0] for effect in publisher.take() if isinstance(effect, SendAnswers))
    assert isinstance(opening, m.Opening)
    assert (opening.lower, opening.below) == ((0,), (5,))


@pytest.mark.rule("E11")
def test_an_orderly_stop_leaves_nothing_to_be_completed_without_what_it_aborted(wire_up: WireUp) -> None:
    wiring = wire_up(min_writers=2)
    live = wiring.reader()
    one, other = wiring.writer("w1"), wiring.writer("w2")
    one.append("0", 3, b"a")
    for writer in (one, other):
        writer.advance(5)
    other.append("0", 5, b"b")
    other.advance(6)
    publisher = wiring.publishers["0"]
    publisher.drain()
    wiring.run()
    wiring.stored["0"] = publisher.record(final=True)
    assert wiring.stored["0"][1:4] == ((5,), (5,), True), "not what it has completed, nor what it asked for ahead"
    assert times(live.epochs()) == [(3, [b"a"])]
    assert ("aborted", 5) in times(live.events())
    wiring.lose_memory("0")
    late = wiring.reader(From.START)
    one.connect()
    one.append("0", 5, b"c")
    assert one.errors() == ["epoch_aborted"]
    other.connect()
    other.append("0", 6, b"d")
    assert other.errors() == []
    assert times(late.epochs()) == []


@pytest.mark.rule("E11", "E15")
def test_an_epoch_that_completed_before_the_crash_and_was_not_reported_is_not_given_by_halves(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    live, writer = wiring.reader(), wiring.writer()
    writer.append("0", 6, b"a")
    writer.append("1", 6, b"b")
    writer.advance(7)
    assert times(live.epochs()) == [(6, [b"a", b"b"])]
    assert wiring.stored["0"].lower == (0,), "what it had before 6 was active"
    wiring.lose_memory("0")
    writer.connect("0")
    late = wiring.reader(From.START)
    live.rejoin("0")
    writer.append("1", 7, b"c")
    writer.advance(8)
    assert times(late.epochs()) == [("aborted", 6), (7, [b"c"])], "segment 1 still has its half"
    assert times(live.epochs()) == [(7, [b"c"])], "who was given 6 keeps it, and hears nothing of it"
    assert live.machine.saw_whole(6)
    assert not late.machine.saw_whole(6)


@pytest.mark.rule("E2", "E11")
def test_an_aborted_epoch_stays_aborted_over_crashes_in_a_row(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 5)
    writer.machine.abort(5)
    wiring.run()
    for incarnation in (2, 3, 4):
        wiring.lose_memory("0", incarnation)
        writer.connect("0")
        progress = wiring.publishers["0"].progress
        assert [progress.state(time) for time in (5, 3 + incarnation)] == [EpochState.ABORTED] * 2
        writer.append("0", 4 + incarnation)
        assert progress.state(4 + incarnation) is EpochState.ACTIVE


@pytest.mark.rule("E2", "E11")
def test_what_was_lost_in_a_crash_stays_aborted_when_the_next_publisher_stops_in_order(wire_up: WireUp) -> None:
    wiring = wire_up()
    wiring.writer().append("0", 5)
    publisher = wiring.lose_memory("0")
    publisher.drain()
    wiring.stored["0"] = publisher.record(final=True)
    wiring.lose_memory("0", 3)
    progress = wiring.publishers["0"].progress
    assert [progress.state(time) for time in (4, 5, 6)] == [*[EpochState.ABORTED] * 2, EpochState.LATENT]


@pytest.mark.rule("E11")
def test_a_publisher_with_a_log_that_stops_in_order_says_what_one_without_it_must_abort(wire_up: WireUp) -> None:
    wiring = wire_up(durable=True)
    publisher, writer = wiring.publishers["0"], wiring.writer()
    writer.append("0", 2)
    writer.machine.abort(6)
    writer.append("0", 8)
    writer.advance(1)
    assert publisher.record() is None
    publisher.drain()
    record = publisher.record(final=True)
    assert record is not None
    assert (record.lower, record.horizon, record.final, record.writers) == ((1,), (8,), True, ("w",))
    assert publisher.progress.state(2) is EpochState.ACTIVE, "its log keeps that"
    writer.append("0", 9)
    assert publisher.record(final=True) == record, "what came later is not taken"


@pytest.mark.rule("E6", "E11")
def test_a_session_that_was_replaced_is_not_admitted_by_a_publisher_that_forgot_the_newer_one(wire_up: WireUp) -> None:
    wiring = wire_up(segments="01")
    old = wiring.writer("w", 1)
    old.cut()
    wiring.writer("w", 2)
    wiring.lose_memory("0", known_writers=["w"], sessions={"w": 2})
    assert old.errors() == [], "it has heard of nothing yet"
    old.connect("0")
    assert set(old.errors()) == {"writer_fenced"}
    assert wiring.publishers["0"].progress.lower.frontier.less_equal(0)


@pytest.mark.rule("E11", "E17", "E18")
def test_a_reader_that_was_cut_off_while_an_epoch_completed_did_not_see_it(wire_up: WireUp) -> None:
    wiring = wire_up()
    reader, writer = wiring.reader(), wiring.writer()
    writer.append("0", 5, b"a")
    writer.advance(6)
    wiring.tick(2)  # a slow stream: nothing is asked for ahead
    del reader.followers["0"], reader.prefixes["0"]
    writer.append("0", 6, b"b")
    writer.advance(7)
    wiring.lose_memory("0")
    reader.rejoin("0")
    writer.connect()
    writer.advance(8)
    assert times(reader.epochs()) == [(5, [b"a"])]
    (gap,) = [event for event in reader.events() if isinstance(event, GapFound)]
    assert (gap.incarnation, gap.below) == (2, (6,))
    assert reader.machine.saw_whole(5)
    assert not reader.machine.saw_whole(6)
    assert reader.machine.saw_whole(7)


@pytest.mark.rule("E17")
def test_an_abort_that_waits_to_be_taken_is_not_reported_again_by_a_gap(wire_up: WireUp) -> None:
    wiring = wire_up()
    reader, writer = wiring.reader(), wiring.writer()
    writer.append("0", 5)
    writer.machine.abort(5)
    wiring.run()
    writer.advance(6)
    assert reader.frontier == [6]
    wiring.lose_memory("0", lower=(0,), horizon=(4,))
    wiring.publishers["0"].progress.abort([5])  # named by the snapshot
    reader.rejoin("0")
    writer.connect()
    writer.advance(7)
    assert times(reader.epochs()) == [("aborted", 5)]


@pytest.mark.rule("E47")
@pytest.mark.parametrize("lost_first", [True, False])
def test_a_finish_remains_whatever_is_lost_before_or_after_it(wire_up: WireUp, lost_first: bool) -> None:
    wiring = wire_up(segments="01", writer_timeout=3.0)
    done, lost = wiring.writer("done"), wiring.writer("lost")
    if lost_first:  # at one segment before, at the other after it
        lost.cut("0")
        for _ in range(8):
            wiring.now += 0.5
            done.machine.tick(wiring.now)
            wiring.run()
            wiring.publishers["0"].tick(wiring.now)
            wiring.run()
    done.leave(m.Leaving.FINISH)
    lost.cut(*lost.peers)
    wiring.writers.remove(lost)
    wiring.tick(8)
    assert [publisher.complete for publisher in wiring.publishers.values()] == [True, True]


@pytest.mark.rule("E46")
def test_a_lost_writer_is_reported_although_another_holds_an_earlier_time() -> None:
    publisher = fresh(limits={"writer_timeout": 3.0, "hold_lost": True})
    for name in ("lost", "behind"):
        publisher.receive(name.encode(), opening(name), 0.0)
    publisher.receive(b"lost", m.Hold(2, "0", (5,)), 0.0)
    for second in range(1, 5):
        publisher.receive(b"behind", m.Alive("0"), float(second))
        publisher.tick(float(second))
    found = [(held.kind, held.writer, held.time) for held in publisher.holders(4.0)]
    assert found[:2] == [(HolderKind.LOST, "lost", 5), (HolderKind.WRITER, "behind", 0)]


@pytest.mark.rule("E46")
def test_what_a_lost_writer_held_is_kept_until_it_is_back(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=3.0, hold_lost=True)
    reader, one, other = wiring.reader(), wiring.writer("w1"), wiring.writer("w2")
    one.append("0", 0, b"a")
    other.append("0", 0, b"b")
    other.advance(1)
    wiring.writers.remove(one)
    wiring.tick(6)
    assert [(h.kind, h.writer) for h in wiring.publishers["0"].holders(wiring.now)] == [(HolderKind.LOST, "w1")]
    assert reader.frontier == [0]
    assert wiring.publishers["0"].writers == ["w1", "w2"]
    back = wiring.writer("w1", 2)
    assert (list(back.machine.held), back.machine.pending_epochs) == ([0], (0,))
    back.advance(1)
    assert times(reader.epochs()) == [(0, [b"a", b"b"])]


@pytest.mark.rule("E46", "E3")
def test_a_lost_writer_that_is_released_leaves_as_one_that_is_not_held_for(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=3.0, hold_lost=True)
    one, other = wiring.writer("w1", 4), wiring.writer("w2")
    one.append("0", 0, b"a")
    other.advance(2)
    publisher = wiring.publishers["0"]
    publisher.release({"w1": 4})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [0], "it is not lost"
    wiring.writers.remove(one)
    wiring.tick(6)
    publisher.release({"w1": 3})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [0], "that was an earlier session"
    publisher.release({"w1": 4})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [2]
    assert m.Aborted in {type(event) for event in wiring.log["0"]}
    publisher.release({"w1": 4})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [2]


@pytest.mark.rule("E46", "E11")
def test_a_publisher_that_lost_its_memory_waits_for_known_writers_until_they_are_released(wire_up: WireUp) -> None:
    wiring = wire_up(writer_timeout=3.0, hold_lost=True)
    one, other = wiring.writer("w1"), wiring.writer("w2")
    other.advance(3)
    wiring.lose_memory("0")
    wiring.writers.remove(one)
    other.connect()
    wiring.tick(8)
    publisher = wiring.publishers["0"]
    assert [(h.kind, h.writer) for h in publisher.holders(wiring.now)] == [(HolderKind.LOST, "w1")]
    publisher.release({"w1": 1})
    wiring.run()
    assert list(publisher.progress.lower.frontier) == [3]


# ---- writers ----


@pytest.mark.rule("E10", "E11")
def test_a_writer_goes_on_with_its_capability_and_learns_what_it_had_not_left(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.advance(2)
    wiring.report("0")
    writer.append("0", 5)
    wiring.lose_memory("0")
    writer.connect()
    with pytest.raises(Exception, match=r"epochs \[5\] are aborted"):
        writer.machine.raise_failure()
    assert list(wiring.publishers["0"].progress.lower.frontier) == [2]
    writer.append("0", 6)
    writer.advance(7)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [7]
    assert writer.of(Over) == []


@pytest.mark.rule("E11")
def test_who_says_that_it_lost_something_waits_until_that_is_recorded(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 5)
    wiring.lose_memory("0", lower=(0,), horizon=(3,))  # of an older copy of the catalog
    wiring.catalog_answers = False
    writer.connect()
    assert not writer.machine.is_open_at("0")
    assert wiring.publishers["0"].progress.state(5) is EpochState.LATENT
    wiring.catalog_answers = True
    wiring.run()
    assert writer.machine.is_open_at("0")
    assert wiring.stored["0"].horizon == (5,)
    assert wiring.publishers["0"].progress.state(5) is EpochState.ABORTED


@pytest.mark.rule("E10", "E11")
def test_what_was_lost_is_said_again_to_a_writer_that_did_not_hear_it(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.append("0", 5)
    wiring.lose_memory("0")
    writer.peers["0"] = b"a connection whose answers get lost"
    writer.deaf.add("0")
    writer.machine.connected("0")
    wiring.run()
    writer.cut()
    writer.connect()
    with pytest.raises(Exception, match=r"epochs \[5\] are aborted"):
        writer.machine.raise_failure()


@pytest.mark.rule("E7", "E47")
def test_a_finish_is_confirmed_once_no_crash_can_take_it_back(wire_up: WireUp) -> None:
    wiring = wire_up()
    done, other = wiring.writer("done"), wiring.writer("other")
    wiring.catalog_answers = False
    done.leave(m.Leaving.FINISH)
    assert done.machine.busy
    wiring.catalog_answers = True
    wiring.run()
    assert not done.machine.busy
    wiring.lose_memory("0", marks=wiring.stored["0"].marks)
    wiring.writers.remove(other)
    wiring.tick(40)
    assert wiring.publishers["0"].complete, "the other one is lost, and the finish stands"


@pytest.mark.rule("E5", "E47")
def test_a_finish_is_confirmed_once_it_is_recorded_that_its_writer_had_opened(wire_up: WireUp) -> None:
    """Else a crash would have the stream wait for writers that finished and never come again."""
    wiring = wire_up(min_writers=2)
    first = wiring.writer("first")
    first.leave(m.Leaving.FINISH)
    assert not first.machine.busy
    wiring.catalog_answers = False
    second = wiring.writer("second")
    second.leave(m.Leaving.FINISH)
    assert second.machine.busy, "that one has finished is known, but not who has opened"
    wiring.catalog_answers = True
    wiring.run()
    assert not second.machine.busy
    assert wiring.stored["0"].marks == ("finished", "enough")


@pytest.mark.rule("E5", "E11")
def test_who_has_opened_counts_over_a_lost_memory(wire_up: WireUp) -> None:
    wiring = wire_up(min_writers=2)
    wiring.writer("first").leave(m.Leaving.CLOSE)
    wiring.report("0")
    wiring.lose_memory("0", marks=wiring.stored["0"].marks)
    second = wiring.writer("second")
    second.advance(3)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [3]
    wiring.report("0")
    assert wiring.stored["0"].marks == ("enough",)


@pytest.mark.rule("E3", "E11")
def test_a_writer_whose_move_was_recorded_and_not_answered_learns_that_it_is_lost(wire_up: WireUp) -> None:
    wiring = wire_up()
    writer = wiring.writer()
    writer.deaf.add("0")
    writer.advance(9)
    assert wiring.stored["0"].lower == (9,)
    wiring.lose_memory("0")
    writer.connect()
    assert set(writer.errors()) == {"writer_lost"}


# ---- an incarnation of which nothing is recorded: one with a log ----


@pytest.mark.rule("E11")
def test_after_a_publisher_that_kept_no_horizon_its_writers_say_what_may_be_lost(wire_up: WireUp) -> None:
    wiring = wire_up(min_writers=2)
    one, other = wiring.writer("w1"), wiring.writer("w2")
    for writer in (one, other):
        writer.advance(5)
    other.append("0", 5)
    other.advance(6)
    wiring.lose_memory("0", lower=(5,), horizon=None)
    one.connect()
    assert not one.machine.is_open_at("0"), "the other one is waited for"
    server = wiring.servers["0"]
    server.receive(b"reader", m.Hello(1, (m.VERSION,), wiring.stream, "0", bytes(16)), wiring.now)
    assert [effect.messages[0].code for effect in wiring.publishers["0"].take()] == ["unavailable"]
    other.connect()
    wiring.tick(1)
    assert one.machine.is_open_at("0")
    assert other.machine.is_open_at("0")
    one.append("0", 5)
    assert one.errors() == ["epoch_aborted"]


@pytest.mark.rule("E11", "E46")
@pytest.mark.parametrize("hold", [False, True])
def test_writers_that_do_not_come_back_keep_no_one_from_opening(wire_up: WireUp, hold: bool) -> None:
    """What they held is another matter: that is held on where it was declared."""
    wiring = wire_up(writer_timeout=3.0, hold_lost=hold)
    wiring.lose_memory("0", lower=(5,), horizon=None, known_writers=["gone"])
    writer = wiring.writer("here", connect=False)
    writer.connect()
    wiring.tick(2)
    assert not writer.machine.is_open_at("0")
    wiring.tick(2)
    assert writer.machine.is_open_at("0")
    writer.advance(7)
    assert list(wiring.publishers["0"].progress.lower.frontier) == [5 if hold else 7]


@pytest.mark.rule("E3", "E11")
def test_after_a_lost_volume_no_epoch_of_a_writer_that_comes_back_completes_without_what_was_lost(
    wire_up: WireUp,
) -> None:
    wiring = wire_up(durable=True)
    writer, other = wiring.writer("w"), wiring.writer("v")
    other.append("0", 5)
    writer.append("0", 5)
    wiring.lose_memory("0")  # the volume, rather: the publisher is one with a log, and that is empty
    other.connect()
    writer.connect()
    assert {error for each in (writer, other) for error in each.errors()} == {"writer_lost"}
    progress = wiring.publishers["0"].progress
    assert progress.state(5) is EpochState.ABORTED
    wiring.writer("w", 2).advance(6)
    assert progress.state(5) is EpochState.ABORTED


# ---- memory in which nothing was ----


@pytest.mark.rule("E11", "E17")
@pytest.mark.parametrize("pulls", [False, True])
def test_a_publisher_that_dies_before_its_first_event_has_lost_nothing(wire_up: WireUp, pulls: bool) -> None:
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    wiring.report("0")
    wiring.lose_memory("0")
    wiring.lose_memory("0", 3)
    reader.rejoin("0")
    if pulls:
        reader.join("0", reader.machine.position("0"), continuing=True, pushes=False)
    writer.connect("0")
    writer.append("0", 1, b"a")
    writer.append("1", 1, b"b")
    writer.advance(2)
    wiring.tick(2)
    assert [began.gap for _, began in reader.began] == [False] * len(reader.began)
    assert reader.epochs() == [(1, [b"a", b"b"])]
    assert reader.machine.saw_whole(0)


@pytest.mark.rule("E11", "E17")
@pytest.mark.parametrize("had", ["data", "a frontier", "a horizon", "what nobody recorded"])
def test_memory_in_which_something_may_have_been_is_a_gap_also_for_who_had_nothing_of_it(
    wire_up: WireUp, had: str
) -> None:
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    wiring.report("0")
    reader.losing.add("0")
    given: dict[str, Any] = {}
    match had:
        case "data":
            writer.append("0", 1, b"lost")
        case "a frontier":
            writer.advance(2)
        case "a horizon":
            given["horizon"] = (3,)
        case _:
            given.update(horizon=None, known_writers=())
    wiring.lose_memory("0", **given)
    wiring.tick(31)
    reader.losing.clear()
    reader.rejoin("0")
    wiring.tick(1)
    assert [began.gap for _, began in reader.began].count(True) == 1


@pytest.mark.rule("E11", "E17")
def test_a_catalog_that_has_forgotten_a_stream_hides_no_gap(wire_up: WireUp) -> None:
    """Put back from a copy, it says of a memory that is lost that nothing was there."""
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 1, b"lost")
    wiring.lose_memory("0", lower=(0,), horizon=())
    reader.rejoin("0")
    assert [began.gap for _, began in reader.began] == [False, True]
