"""How much of a log a reader by times can do without: all that holds nothing for it, and never an event more."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.protocol.frontier import Antichain
from epochal.protocol.log import history as histories
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import CHECKPOINT_EVERY, EVENT_OVERHEAD, History, SegmentState, apply, empty_state
from epochal.protocol.messages import NOTHING_YET, Aborted, Data, Event, Frontier
from epochal.protocol.progress import Progress
from epochal.protocol.times import Time, join

pytestmark = pytest.mark.rule("E20")

PAIR = st.tuples(st.integers(0, 4), st.integers(0, 4))
STEPS = st.lists(st.tuples(st.sampled_from(["data", "move", "abort"]), PAIR, st.integers(0, 3)), max_size=25)
WANTED = st.lists(PAIR, max_size=3).map(lambda times: EpochQuery(tuple(Antichain(times))))


def log_of(steps: Any) -> tuple[list[Event], list[SegmentState]]:
    """A log of pairs as a publisher would write it, and the state behind each event; the first is that before all."""
    progress = Progress([(0, 0)])
    events, states = list[Event](), [SegmentState.of(NOTHING_YET, progress)]
    for step, pair, which in steps:
        frontier = list(progress.lower.frontier)
        low = frontier[which % len(frontier)]
        seq, time = len(events), join(low, pair)
        event: Event
        if step == "data" and time not in progress.aborted:
            event = Data(seq, seq - 1, time, b"", 1, 0, b"")
        elif step == "abort":
            event = Aborted(seq, seq - 1, (time,))
        else:
            after = Antichain([*(other for other in frontier if other != low), time, (low[0], low[1] + 3)])
            left, entered = set(frontier) - set(after), set(after) - set(frontier)
            event = Frontier(seq, seq - 1, (*((one, -1) for one in left), *((one, 1) for one in entered)))
        events.append(event)
        apply(progress, event)
        states.append(SegmentState.of(seq, progress))
    return events, states


def matters(wanted: EpochQuery, event: Event) -> bool:
    """Whether an event is of a wanted epoch, written down anew."""
    times = (event.time,) if isinstance(event, Data) else event.times if isinstance(event, Aborted) else ()
    return any(map(Antichain(wanted.times).less_equal, times))


@given(STEPS, WANTED)
def test_a_log_is_untouched_up_to_some_event_and_touched_from_there_on(steps: Any, wanted: EpochQuery) -> None:
    events, states = log_of(steps)
    untouched = [wanted.untouched(state) for state in states]
    assert all(before or not after for before, after in pairwise(untouched))
    assert sum(untouched) == len(states) or not wanted.untouched(states[sum(untouched)])
    for event, state in zip(events, states[1:], strict=True):
        if wanted.untouched(state):
            assert not any(matters(wanted, each) for each in events[: event.seq + 1])
            assert wanted.whole_after(state)


@example([("move", (2, 2), 0)], EpochQuery(((0, 0),)), 5000, False)  # a wanted epoch that is over, and had no data
@given(STEPS, WANTED, st.integers(0, 5000), st.booleans())
def test_the_beginning_is_after_all_that_does_not_matter(
    steps: Any, wanted: EpochQuery, kept: int, frequent: bool
) -> None:
    """As a walk over the whole log finds it, whatever is still in memory, and however many states are known."""
    events, states = log_of(steps)
    with pytest.MonkeyPatch.context() as patched:
        if frequent:
            patched.setattr(histories, "CHECKPOINT_EVERY", 4)
        history = History(states[0], max_bytes=kept, max_age=1e9)
        for event in events:
            history.append(event, 0.0)
        found = wanted.beginning(history)
    best = next((state for state in reversed(states) if wanted.untouched(state)), None)
    if best is None or best.seq < history.truncated_at:
        assert found is None
    else:
        assert found == best


@given(STEPS, WANTED, st.integers(0, 25))
def test_events_are_passed_over_up_to_the_first_that_matters(steps: Any, wanted: EpochQuery, start: int) -> None:
    events, states = log_of(steps)
    state = states[min(start, len(events))]
    if not wanted.untouched(state):
        return
    end, found = wanted.pass_over(state, events[state.seq + 1 :])
    assert end == states[end.seq + 1]
    assert wanted.untouched(end)
    assert found == (end.seq < len(events) - 1)
    assert not found or not wanted.untouched(states[end.seq + 2])


def test_nothing_that_is_wanted_is_found_at_the_end() -> None:
    history = History(empty_state((0,)), max_bytes=10**9, max_age=1e9)
    for seq in range(5):
        history.append(Data(seq, seq - 1, seq, b"", 1, 0, b""), 0.0)
    assert EpochQuery(()).beginning(history) == SegmentState(4, (0,), (0, 1, 2, 3, 4), ())


def test_what_was_aborted_is_wanted_as_well_since_it_is_reported() -> None:
    state = SegmentState(4, (0,), (), (7,))
    assert not EpochQuery((5,)).untouched(state)
    assert EpochQuery((5,)).whole_after(state)
    assert EpochQuery((8,)).untouched(state)


@pytest.mark.rule("E11")
def test_what_was_lost_may_have_been_what_is_wanted() -> None:
    state = SegmentState(4, (0,), (), (), (7,))
    assert [EpochQuery((time,)).whole_after(state) for time in (5, 7, 8)] == [False, False, True]


@pytest.mark.parametrize("epochs", [1, 500, 3 * CHECKPOINT_EVERY])
def test_a_question_costs_no_more_than_what_lies_between_two_known_states(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(empty_state((0,)), max_bytes=10**6 * EVENT_OVERHEAD, max_age=1e9)
    for time in range(epochs):
        history.append(Data(2 * time, 2 * time - 1, time, b"", 1, 0, b""), 0.0)
        history.append(Frontier(2 * time + 1, 2 * time, ((time, -1), (time + 1, 1))), 0.0)
    looked_at = 0
    known = EpochQuery.untouched

    def counting(progress: Progress, event: Event) -> None:
        nonlocal looked_at
        looked_at += 1
        apply(progress, event)

    def counted(wanted: EpochQuery, state: SegmentState) -> bool:
        nonlocal looked_at
        looked_at += 1
        return known(wanted, state)

    monkeypatch.setattr("epochal.protocol.log.epoch_query.apply", counting)
    monkeypatch.setattr(EpochQuery, "untouched", counted)
    for time in sorted({0, 1, epochs // 2, epochs - 1, epochs}):
        looked_at = 0
        wanted: Time = time
        found = EpochQuery((wanted,)).beginning(history)
        assert found is not None
        assert found.seq == 2 * time - 1
        assert looked_at <= CHECKPOINT_EVERY + 10
