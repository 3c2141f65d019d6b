"""Every form of `since`: what it says, what it means for a stream, and what is told of one that is wrong."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import CursorError, EpochalError, TimeShapeError, UsageError
from epochal.protocol.frontier import Antichain
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.messages import Position
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.subscriber.since import (
    AfterCut,
    AfterEvent,
    AfterSeq,
    AfterTime,
    From,
    FromFrontier,
    is_since,
    placed,
    read_since,
)
from epochal.protocol.times import TimeShape, less_equal

INT, PAIR = TimeShape(), TimeShape.parse("(int, int)")
CURSOR = Cursor("uid", {"0": Position(1, 4), "1": Position(2, 9)}, (3,))

pytestmark = pytest.mark.rule("E20")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, From.LIVE),
        ("start", From.START),
        (CURSOR, CURSOR),
        ("seq:-1", AfterSeq(-1)),
        ("seq: 17", AfterSeq(17)),
        ("time:5", AfterTime(5)),
        ("time:[3,[1,2]]", AfterTime((3, (1, 2)))),
        ("frontier:[]", FromFrontier(())),
        ("frontier:[[0,3],[2,1]]", FromFrontier(((0, 3), (2, 1)))),
        ('cut:{"0":17,"1":[2,5]}', AfterCut({"0": AfterEvent(17), "1": AfterEvent(5, 2)})),
    ],
)
def test_each_form_is_read(given: object, read: object) -> None:
    assert read_since(given) == read


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (5, "not 5"),
        ("", "not ''"),
        ("live", "start, seq:N"),
        ("begin:5", "start, seq:N"),
        ("seq:", "with the number of the last event not wanted"),
        ("seq:true", "True is no event's number"),
        ("seq:-2", "-2 is no event's number"),
        ("seq:1.5", "1.5 is no event's number"),
        (f"seq:{2**63}", "is no event's number"),
        ("time:", "since 'time:': this is no JSON; it is written time:T, with an int"),
        ("time:noon", "since 'time:noon': this is no JSON; it is written time:T, with an int"),
        ("time:true", "time:T, with an int"),
        ("time:" + "[" * 100_000, "this is no JSON; it is written time:T, with an int"),
        ("frontier:5", "5 is no array of times"),
        ("frontier:[null]", "frontier:[T, ...], an array"),
        ("cut:[1]", "is no object"),
        ('cut:{"0":[1]}', "no pair of incarnation and number"),
        ('cut:{"0":"1"}', "is no event's number"),
    ],
)
def test_what_is_none_is_refused_with_the_way_it_is_written(wrong: object, told: str) -> None:
    with pytest.raises(UsageError, match="since") as caught:
        read_since(wrong)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.text() | st.sampled_from(["seq:", "time:", "frontier:", "cut:"]).flatmap(lambda f: st.text().map(f.__add__)))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError) if is_since(text) else pytest.raises(UsageError):
        read_since(text)


def test_a_number_is_a_place_in_a_stream_of_one_segment_only() -> None:
    assert placed(AfterSeq(7), "uid", INT, ["0"]).places == {"0": AfterEvent(7)}
    with pytest.raises(UsageError, match="one segment; this one has 2: give a position for each, as cut:"):
        placed(AfterSeq(7), "uid", INT, ["0", "1"])


def test_a_cut_has_a_place_in_each_segment() -> None:
    cut = AfterCut({"0": AfterEvent(7), "1": AfterEvent(8)})
    assert placed(cut, "uid", INT, ["1", "0"]).places == cut.places
    for segments in (["0"], ["0", "1", "2"], ["0", "2"]):
        with pytest.raises(UsageError, match="the stream has"):
            placed(cut, "uid", INT, segments)


def test_a_cursor_is_of_the_stream_and_its_segments() -> None:
    beginning = placed(CURSOR, "uid", INT, ["0", "1"])
    assert (beginning.places, beginning.cursor, beginning.wanted) == (CURSOR.positions, CURSOR, None)
    with pytest.raises(CursorError, match="another stream"):
        placed(CURSOR, "uid of the next", INT, ["0", "1"])
    with pytest.raises(CursorError, match="segments"):
        placed(CURSOR, "uid", INT, ["0"])


@pytest.mark.parametrize("text", ["time:5", "time:[1]", "time:[1,-1]", "frontier:[[1,2],3]"])
def test_times_have_the_shape_of_the_stream(text: str) -> None:
    with pytest.raises(TimeShapeError, match="shape"):
        placed(read_since(text), "uid", PAIR, ["0"])


PAIRS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@given(PAIRS, PAIRS)
def test_after_a_time_is_everything_that_is_not_before_or_at_it(wanted: tuple[int, int], time: tuple[int, int]) -> None:
    beginning = placed(AfterTime(wanted), "uid", PAIR, ["0"])
    assert beginning.wanted is not None
    assert Antichain(beginning.wanted).less_equal(time) == (not less_equal(time, wanted))


def test_after_the_greatest_time_there_is_nothing() -> None:
    assert placed(AfterTime(2**63 - 1), "uid", INT, ["0"]).wanted == ()


def test_from_a_frontier_is_what_it_reaches() -> None:
    beginning = placed(FromFrontier(((2, 1), (0, 3), (2, 2))), "uid", PAIR, ["0", "1"])
    assert beginning.wanted is not None
    assert set(beginning.wanted) == {(0, 3), (2, 1)}
    assert set(beginning.places.values()) == {EpochQuery(beginning.wanted)}


@given(st.lists(PAIRS, max_size=2), st.lists(PAIRS, max_size=2), st.lists(PAIRS, max_size=2), PAIRS)
def test_a_history_is_whole_after_a_state_at_which_no_wanted_time_is_under_way_or_over(wanted, lower, active, time):
    """If it says so, each wanted time is still to come there, with all of its events."""
    active = [one for one in active if Antichain(lower).less_equal(one)]  # as in every state
    state = SegmentState(4, tuple(Antichain(lower)), tuple(active), ())
    asked = EpochQuery(tuple(Antichain(wanted)))
    if asked.whole_after(state) and Antichain(asked.times).less_equal(time):
        assert state.progress().lower.frontier.less_equal(time)
        assert not any(less_equal(time, one) for one in active)


def test_errors_of_since_are_the_callers() -> None:
    with pytest.raises(EpochalError) as caught:
        read_since("seq:x")
    assert (caught.value.code, caught.value.retryable) == ("usage", False)
