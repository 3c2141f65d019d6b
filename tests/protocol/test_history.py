"""The history ring against a plain list of all events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.log.history import EVENT_OVERHEAD, History, SegmentState, apply, empty_state
from epochal.protocol.messages import NOTHING_YET, Aborted, Data, Event, Frontier
from epochal.protocol.progress import Progress
from epochal.protocol.subscriber.join_filter import JoinFilter

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(0, 6), st.integers(0, 300)),
        st.tuples(st.just("move"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 6), st.just(0)),
    ),
    max_size=30,
)


def events_of(steps):
    """A log as a publisher would write it, with the state behind each event; the first state is that before all."""
    progress = Progress([0])
    events: list[Event] = []
    states = [SegmentState.of(NOTHING_YET, progress)]
    for step, n, size in steps:
        seq, low = len(events), next(iter(progress.lower.frontier))
        event: Event
        match step:
            case "data" if n not in progress.aborted:
                event = Data(seq, seq - 1, low + n, b"t" * (size // 2), 1, 0, b"x" * size)
            case "abort":
                event = Aborted(seq, seq - 1, (low + n,))
            case _:
                event = Frontier(seq, seq - 1, ((low, -1), (low + max(n, 1), 1)))
        events.append(event)
        apply(progress, event)
        states.append(SegmentState.of(seq, progress))
    return events, states


def bytes_of(event: Event) -> int:
    """A topic can be 1 KiB long, beside an empty payload."""
    return len(event.payload) + len(event.topic) if isinstance(event, Data) else 0


@pytest.mark.rule("E13", "E9")
@given(STEPS, st.integers(0, 4000), st.floats(0, 20))
def test_the_ring_is_a_suffix_of_the_log_with_the_state_before_it(steps, max_bytes, max_age):
    events, states = events_of(steps)
    history = History(empty_state((0,)), max_bytes=max_bytes, max_age=max_age)
    for n, event in enumerate(events):
        history.append(event, float(n))
        history.trim(float(n))
        assert history.last == n
        kept = events[history.truncated_at + 1 : n + 1]
        assert list(history.since(history.truncated_at)) == kept
        assert history.bytes == sum(EVENT_OVERHEAD + bytes_of(e) for e in kept) <= max_bytes
        assert all(n - e.seq <= max_age for e in kept)
        # nothing was dropped that both bounds allow
        if history.truncated_at >= 0:
            newest_gone = events[history.truncated_at]
            size = EVENT_OVERHEAD + bytes_of(newest_gone)
            assert history.bytes + size > max_bytes or n - newest_gone.seq > max_age or kept == []
    for seq in range(history.truncated_at, history.last + 1):
        assert SegmentState.of(seq, history.state_at(seq)) == states[seq + 1]
        assert list(history.since(seq)) == events[seq + 1 :]


@given(STEPS, st.integers(1, 5), st.integers(0, 900))
def test_batches_walk_through_everything(steps, max_events, max_bytes):
    events, _ = events_of(steps)
    history = History(empty_state((0,)), max_bytes=10**9, max_age=1e9)
    for event in events:
        history.append(event, 0.0)
    found: list[Event] = []
    while batch := history.batch(len(found) - 1, max_events, max_bytes):
        assert len(batch) <= max_events
        size = sum(EVENT_OVERHEAD + bytes_of(e) for e in batch)
        assert len(batch) == 1 or size <= max_bytes
        found += batch
    assert found == events


def test_no_bytes_keep_nothing_but_the_state():
    history = History(empty_state((0,)), max_bytes=0, max_age=1e9)
    history.append(Data(0, -1, 3, b"", 1, 0, b"x"), 0.0)
    history.append(Frontier(1, 0, ((0, -1), (2, 1))), 0.0)
    assert (history.last, history.truncated_at, history.bytes) == (1, 1, 0)
    assert list(history.since(1)) == []
    assert SegmentState.of(1, history.state_at(1)) == SegmentState(1, (2,), (3,), ())


@pytest.mark.parametrize("kept", [500, 1023, 1024, 1025, 3500])
def test_a_full_ring_replays_no_more_than_what_lies_between_two_checkpoints(kept, monkeypatch):
    history = History(empty_state((0,)), max_bytes=kept * EVENT_OVERHEAD, max_age=1e9)
    for seq in range(3 * kept + 5000):
        history.append(Data(seq, seq - 1, seq % 3, b"", 0, 0, b""), 0.0)
    replayed = 0

    def counting(progress, event):
        nonlocal replayed
        replayed += 1
        apply(progress, event)

    monkeypatch.setattr("epochal.protocol.log.history.apply", counting)
    for seq in (history.last, history.truncated_at, history.truncated_at + 400):
        replayed = 0
        assert history.state_at(seq).upper.active == {0, 1, 2}
        assert replayed <= 1024
    before = replayed = 0
    for seq in range(history.last + 1, history.last + 3000):
        history.append(Data(seq, seq - 1, 0, b"", 0, 0, b""), 0.0)
    assert replayed - before <= 3 * 3000  # appending costs the same however full the ring is


def test_a_state_has_the_maximal_times_as_its_upper_frontier():
    state = SegmentState(4, ((0, 0),), ((0, 1), (0, 2), (3, 0)), ())
    assert state.upper == ((0, 2), (3, 0))


@pytest.mark.rule("E11", "E15")
def test_the_upper_frontier_covers_what_was_lost():
    state = SegmentState(4, (2,), (3,), (), (6,))
    assert state.upper == (6,)
    assert [time for time in range(9) if JoinFilter(state.lower, state.upper, state.aborted).admits(time)] == [7, 8]
