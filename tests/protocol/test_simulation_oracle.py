"""The simulation's own judges: each kind of broken promise, as a short story written by hand, is found and named.

A story is told to the oracle as publishers, writers and readers would tell it; none of the project's machines runs.
"""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.simulation import gathering, liveness, oracle, order, retention, stories
from tests.simulation.gathering import Gathering
from tests.simulation.liveness import Liveness
from tests.simulation.oracle import Asked, Log, Oracle, Outcome, Session, Violation, meta_of
from tests.simulation.scenario import Scenario

from epochal.protocol import messages as m
from epochal.protocol.times import Time


class Story:
    """One writer over segments `0` and `1`, which begin at 0; everything else is told step by step."""

    def __init__(self, **scenario: Any) -> None:
        drawn = Scenario.draw(Random(0), {"segments": 2, "skew": (1, 1), "min_writers": 1, "shape": "int", **scenario})
        self.oracle = Oracle(drawn)
        self.logs = {name: self.oracle.incarnation(name, 1, [0], m.NOTHING_YET) for name in drawn.names}
        self.session = self.opens("w", 1)

    def opens(self, writer: str, number: int, held: Iterable[Time] = (0,)) -> Session:
        session = self.oracle.session(writer, number)
        session.held = frozenset(held)
        for log in self.logs.values():
            self.oracle.opened(log, writer, number)
        return session

    def appends(
        self, segment: str, time: Time, payload: bytes, *, acked: bool = True, by: Session | None = None
    ) -> None:
        session, log = by or self.session, self.logs[segment]
        session.order += 1
        asked = Asked(payload, session, segment, time, session.order)
        self.oracle.asked(asked)
        self.oracle.logged(log, m.Data(log.last + 1, log.last, time, b"", 1, 0, payload, meta_of(payload)))
        if acked:
            self.oracle.acknowledged(asked, log.incarnation)

    def moves(self, segment: str, old: Iterable[Time], new: Iterable[Time]) -> None:
        log = self.logs[segment]
        changes = (*((time, -1) for time in old), *((time, 1) for time in new))
        self.oracle.logged(log, m.Frontier(log.last + 1, log.last, changes))

    def aborts(self, segment: str, *times: Time) -> None:
        log = self.logs[segment]
        self.oracle.logged(log, m.Aborted(log.last + 1, log.last, times))

    def declares(self, *held: Time, by: Session | None = None) -> None:
        (by or self.session).sent.append(frozenset(held))

    def restarts(self, segment: str, incarnation: int, start: Iterable[Time], **options: Any) -> Log:
        """Without memory, at time 5."""
        last = m.NOTHING_YET if not self.oracle.scenario.durable else self.logs[segment].last
        self.logs[segment] = self.oracle.incarnation(segment, incarnation, start, last, now=5.0, **options)
        return self.logs[segment]

    def whole_epoch(self, time: int = 0) -> None:
        """`time` has a record at each segment, is left and completed."""
        self.appends("0", time, b"a%d" % time)
        self.appends("1", time, b"b%d" % time)
        self.declares(time + 1)
        self.moves("0", [time], [time + 1])
        self.moves("1", [time], [time + 1])


def test_a_story_in_which_all_is_well_is_not_blamed() -> None:
    story = Story()
    story.whole_epoch()
    story.appends("0", 1, b"half")
    story.aborts("0", 1)
    story.moves("0", [1], [2])


# ---- writers that leave (E3, E4) ----


def an_epoch_that_nobody_left_completes(story: Story) -> None:
    story.moves("0", [1], [2])


def an_epoch_is_finished_by_a_successor_that_never_held_it(story: Story) -> None:
    later = story.opens("w", 2, [2])
    story.declares(3, by=later)
    story.moves("0", [1], [2])


@pytest.mark.rule("E3", "E4")
@pytest.mark.parametrize(
    ("happens", "rule"),
    [
        (an_epoch_that_nobody_left_completes, "E3: session 1 of w never left"),
        (an_epoch_is_finished_by_a_successor_that_never_held_it, "E3: session 2 of w could not finish"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_epoch_completes_only_once_its_writers_have_left_it(happens: Callable[[Story], None], rule: str) -> None:
    story = Story()
    story.whole_epoch()
    story.appends("0", 1, b"lost")
    with pytest.raises(Violation, match=rule):
        happens(story)


@pytest.mark.rule("E3", "E4")
def test_a_successor_that_held_an_epoch_finishes_it() -> None:
    story = Story()
    story.whole_epoch()
    story.appends("0", 1, b"half")
    later = story.opens("w", 2, [1])
    story.declares(2, by=later)
    story.moves("0", [1], [2])


# ---- lost memories (E11) ----


@pytest.mark.rule("E11")
def test_a_record_that_a_disk_lost_after_it_was_acknowledged_is_remembered() -> None:
    story = Story(durable=True, interval=True)
    story.appends("0", 0, b"kept")
    story.appends("0", 0, b"lost")
    log = story.logs["0"]
    story.oracle.incarnation("0", 2, [0], 0)  # the machine has died: event 1 is gone
    assert (log.last, story.oracle.lost) == (0, {b"lost"})


@pytest.mark.rule("E11")
@pytest.mark.parametrize("fate", ["taken data at", "completed", "aborted", "lost"])
def test_nothing_is_added_to_what_an_earlier_incarnation_had_decided_or_begun(fate: str) -> None:
    story = Story()
    below: tuple[Time, ...] = ()
    if fate == "taken data at":
        story.appends("0", 0, b"x")
    elif fate == "completed":
        story.moves("0", [0], [3])
    elif fate == "aborted":
        story.aborts("0", 0)
    else:
        below = (0,)
    story.restarts("0", 2, [0], below=below)
    session = story.opens("w", 2)
    with pytest.raises(Violation, match="S35, E2: .* decided" if below else f"E11: data at 0, .* had {fate}"):
        story.appends("0", 0, b"more", by=session)


@pytest.mark.rule("E11", "E6")
def test_a_session_that_was_fenced_before_a_loss_is_not_opened_after_it() -> None:
    story = Story()
    story.opens("w", 2)
    story.restarts("0", 2, [0])
    with pytest.raises(Violation, match="E11: segment 0, incarnation 2, opened session 1 of w"):
        story.oracle.opened(story.logs["0"], "w", 1)


@pytest.mark.rule("E11")
def test_what_a_life_without_a_record_had_is_aborted_as_far_as_anyone_could_report_it() -> None:
    story = Story()
    other = story.opens("v", 1)
    story.appends("0", 1, b"mine")
    story.appends("0", 2, b"theirs", by=other)
    story.appends("0", 3, b"under way", acked=False)
    log = story.restarts("0", 2, [0])
    with pytest.raises(Violation, match=r"E11: .* begins with .*acknowledged to who asked was b'mine' at 1"):
        story.oracle.gathered(log, [0], [0], {("w", 1)})
    story.oracle.gathered(log, [0], [1], {("w", 1)})
    assert [story.oracle.unknowable(time) for time in (1, 2, 3)] == [False, True, False]
    story.appends("0", 3, b"again", by=story.opens("w", 2))


@pytest.mark.rule("E11")
def test_what_a_life_without_a_record_had_completed_need_not_be_known() -> None:
    story = Story()
    story.whole_epoch()
    log = story.restarts("0", 2, [0])
    story.oracle.gathered(log, [0], [], set())
    assert [story.oracle.unknowable(time) for time in (0, 1)] == [True, False]


@pytest.mark.rule("E11")
def test_who_could_be_heard_is_waited_for() -> None:
    ask = m.Open(1, "uid", "0", "w", 1, None, m.Resume(-1, (0,), ()))
    gathering = Gathering("segment 0", ["w", "v"], 3.0)
    gathering.asks(b"peer", ("w", 1), ask)
    gathering.tick(1.0)
    with pytest.raises(Violation, match=r"E11: segment 0, .* has not heard \['v'\]"):
        gathering.begins(1.0)
    with pytest.raises(Violation, match="has not heard"):
        gathering.died()
    gathering.tick(3.0)
    gathering.asks(b"late", ("v", 1), ask._replace(writer="v"))
    gathering.begins(3.0)
    gathering.died()
    assert gathering.heard == {("w", 1)}
    gathering.refused(b"peer")
    assert gathering.heard == set()


# ---- what must be kept ----


@pytest.mark.rule("E13")
def test_events_may_go_once_newer_ones_fill_the_retention_or_they_are_too_old() -> None:
    story = Story(retention_bytes=700, retention_age=10.0)
    log = story.logs["0"]
    for payload in (b"a", b"b", b"c", b"d"):  # 201 bytes each
        story.appends("0", 0, payload)
    gone = [story.oracle.may_be_gone(log, m.Position(1, seq), 5.0) for seq in (-1, 0, 3)]
    assert gone == [True, False, False]
    assert story.oracle.may_be_gone(log, m.Position(1, 2), 11.0), "all are 11 s old"
    assert not story.oracle.may_be_gone(log, m.Position(1, 3), 11.0), "nothing is after it"
    assert story.oracle.wanted_may_be_gone(log, [0], 5.0), "0 has begun before"
    assert not story.oracle.wanted_may_be_gone(log, [1], 5.0)
    assert story.oracle.wanted_may_be_gone(log, [1], 11.0) is False


@pytest.mark.rule("E10")
def test_events_of_a_memory_go_with_it_and_those_on_disk_stay_as_far_as_the_disk_had_them() -> None:
    story = Story()
    story.appends("0", 0, b"x")
    log = story.restarts("0", 2, [0])
    assert story.oracle.may_be_gone(log, m.Position(1, 0), 6.0)
    kept = Story(durable=True, interval=True, retention_bytes=300)
    for payload in (b"x", b"y", b"z"):
        kept.appends("0", 0, payload)
    log = kept.oracle.incarnation("0", 2, [0], 1)  # z is lost
    assert log.survived(m.Position(1, 2)) == 1
    assert log.survived(m.Position(1, 0)) == 0
    assert [kept.oracle.may_be_gone(log, m.Position(1, seq), 1.0) for seq in (-1, 0, 2)] == [True, False, False]
    fresh = kept.oracle.incarnation("0", 3, [0], m.NOTHING_YET, fresh=True)
    assert kept.oracle.may_be_gone(fresh, m.Position(2, 1), 1.0), "that volume is lost"


# ---- what must not wait for ever ----


@pytest.mark.rule("E11")
def test_a_frontier_that_is_recorded_must_be_reported_soon() -> None:
    liveness = Liveness("0", records=True)
    liveness.recorded([5], 1.0)
    liveness.judge([3], 1.9)
    with pytest.raises(Violation, match=r"liveness, E11: segment 0 reports \[3\], and \[5\] is recorded for 1.1 s"):
        liveness.judge([3], 2.1)
    liveness.excused(2.1)
    liveness.judge([3], 3.0)
    liveness.judge([6], 9.0)
    liveness.judge([], 99.0)


@pytest.mark.rule("E5", "E11")
def test_who_opens_must_be_answered_while_the_catalog_answers() -> None:
    liveness = Liveness("0", records=True)
    liveness.asks(b"peer", 0.0)
    liveness.judge([0], 9.0)  # the catalog has answered nothing
    for at in range(5):
        liveness.recorded([0], float(at))
    with pytest.raises(Violation, match=r"liveness, E5: segment 0 leaves an open without an answer for 9\.0 s"):
        liveness.judge([0], 9.0)
    liveness.opens_excused(9.0)
    liveness.judge([0], 20.0)
    liveness.answered(b"peer")
    on_disk = Liveness("0", records=False)
    on_disk.asks(b"peer", 0.0)
    with pytest.raises(Violation, match="liveness, E5"):
        on_disk.judge([0], 9.0)


# ---- logs and writers ----


def data_twice(story: Story) -> None:
    log = story.logs["0"]
    story.appends("0", 0, b"x")
    story.oracle.logged(log, m.Data(1, 0, 0, b"", 1, 0, b"x", meta_of(b"x")))


def data_after_completion(story: Story) -> None:
    story.moves("0", [0], [2])
    story.appends("0", 1, b"x")


def a_frontier_that_goes_back(story: Story) -> None:
    story.moves("0", [0], [2])
    story.moves("0", [2], [1])


def a_change_that_is_none(story: Story) -> None:
    story.moves("0", [0], [0])


def an_abort_of_what_is_complete(story: Story) -> None:
    story.moves("0", [0], [2])
    story.aborts("0", 1)


def a_hole_in_the_log(story: Story) -> None:
    story.oracle.logged(story.logs["0"], m.Aborted(1, 0, (0,)))


def an_acknowledgement_of_nothing(story: Story) -> None:
    asked = Asked(b"x", story.session, "0", 0, 1)
    story.oracle.asked(asked)
    story.oracle.acknowledged(asked, 1)


def an_older_session(story: Story) -> None:
    story.opens("w", 2)
    story.oracle.opened(story.logs["0"], "w", 1)


def a_session_number_twice(story: Story) -> None:
    story.oracle.session("w", 1)


def an_incarnation_twice(story: Story) -> None:
    story.restarts("0", 1, [0])


@pytest.mark.parametrize(
    ("happens", "rule"),
    [
        (data_twice, "E6: logged twice"),
        (data_after_completion, "S35, E2"),
        (a_frontier_that_goes_back, "I6"),
        (a_change_that_is_none, "S5"),
        (an_abort_of_what_is_complete, "E2"),
        (a_hole_in_the_log, "E14"),
        (an_acknowledgement_of_nothing, "E9"),
        (an_older_session, "E6"),
        (a_session_number_twice, "E12"),
        (an_incarnation_twice, "E12"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_publisher_or_catalog_must_never_do_is_found(happens: Callable[[Story], None], rule: str) -> None:
    story = Story()
    with pytest.raises(Violation, match=rule):
        happens(story)


@pytest.mark.rule("E10")
@pytest.mark.parametrize("what", ["a frontier", "an abort", "the first data", "all under batch"])
def test_what_no_crash_may_lose_is_missed(what: str) -> None:
    story = Story(durable=True, interval=what != "all under batch")
    if what == "a frontier":
        story.moves("0", [0], [1])
    elif what == "an abort":
        story.aborts("0", 0)
    else:
        story.appends("0", 0, b"x")
    with pytest.raises(Violation, match="E10"):
        story.oracle.incarnation("0", 2, [0], m.NOTHING_YET)


def test_an_append_is_acknowledged_once() -> None:
    story = Story()
    story.appends("0", 0, b"x")
    asked = story.oracle.appends[b"x"]
    assert asked.outcome is Outcome.ACKED
    with pytest.raises(Violation, match="E1"):
        story.oracle.acknowledged(asked, 1)


# ---- the judges themselves ----


def test_the_order_that_judges_is_that_of_products() -> None:
    assert order.reached([(0, 3), (2, 1)], (2, 2))
    assert not order.reached([(0, 3), (2, 1)], (1, 2))
    assert order.covered((1, (0, 2)), [(0, (9, 9)), (1, (1, 2))])
    assert order.maximal([(0, 3), (0, 1), (2, 0)]) == {(0, 3), (2, 0)}
    assert order.is_antichain([(0, 3), (2, 1)])
    assert not order.is_antichain([1, 2])


def test_the_judges_use_nothing_of_what_they_judge() -> None:
    """Beside themselves they know messages, the scenario and the type of a time: no algebra, filters or histories."""
    allowed = {"epochal.protocol", "epochal.protocol.times", "tests.simulation.scenario"}
    judges = (gathering, liveness, oracle, order, retention, stories)
    allowed |= {module.__name__ for module in judges}
    for module in judges:
        assert module.__file__
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Import):
                assert not [name.name for name in node.names if name.name.startswith("epochal")]
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("epochal"):
                assert node.module in allowed, f"{module.__name__} uses {node.module}"
                names = {name.name for name in node.names}
                assert node.module != "epochal.protocol" or names == {"messages"}
                assert node.module != "epochal.protocol.times" or names == {"Time"}


@pytest.mark.rule("S34")
def test_a_batch_that_says_of_itself_what_its_writer_did_not_is_seen() -> None:
    story = Story()
    payload = next(text for n in range(9) if meta_of(text := b"%d" % n) is not None)
    story.session.order += 1
    story.oracle.asked(Asked(payload, story.session, "1", 0, story.session.order))
    with pytest.raises(Violation, match="S34: logged with None"):
        story.oracle.logged(story.logs["1"], m.Data(0, -1, 0, b"", 1, 0, payload))
