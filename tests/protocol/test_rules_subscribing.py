"""What a subscriber may deliver when segments join, restart and are resumed at different moments; each broke once."""

import pytest

from epochal.errors import CursorError
from epochal.protocol import messages as m
from epochal.protocol.cursors import Cursor
from epochal.protocol.following import Began
from epochal.protocol.history import State
from epochal.protocol.subscribing import EpochBatches, EpochWasAborted, Subscriber
from epochal.protocol.times import Time, TimeShape

INT = TimeShape.parse("int")


def subscriber(cursor: Cursor | None = None) -> Subscriber:
    return Subscriber("uid", INT, ["a", "b"], cursor=cursor)


def joins(
    sub: Subscriber,
    segment: str,
    lower: list[Time],
    upper: list[Time] | None = None,
    *,
    seq: int = -1,
    incarnation: int = 1,
    gap: bool = False,
    filters: bool = True,
) -> None:
    state = State(seq, tuple(lower), tuple(upper or ()), ())
    sub.began(segment, Began(incarnation, state, filters, gap, False))


def data(seq: int, time: Time, payload: bytes = b"x") -> m.Data:
    return m.Data(seq, seq - 1, time, b"", 1, 0, payload)


def moved(seq: int, old: Time, new: Time | None) -> m.Frontier:
    changes = ((old, -1),) if new is None else ((old, -1), (new, 1))
    return m.Frontier(seq, seq - 1, changes)


def epochs(sub: Subscriber) -> list[EpochBatches | EpochWasAborted]:
    taken = []
    while (epoch := sub.next_epoch()) is not None:
        taken.append(epoch)
    return taken


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
def test_an_abort_that_was_not_taken_yet_is_in_the_cursor() -> None:
    sub = subscriber()
    joins(sub, "a", [0])
    joins(sub, "b", [0])
    sub.event("b", data(0, 1))
    sub.event("a", m.Aborted(0, -1, (1,)))
    sub.event("b", data(1, 0))
    sub.event("a", moved(1, 0, 2))
    sub.event("b", moved(2, 0, 2))
    cursor = sub.cursor()  # 0 is to be read again at b, and with it half of 1
    assert cursor.aborted == (1,)
    resumed = subscriber(cursor)
    joins(resumed, "a", [2], seq=1, filters=False)
    joins(resumed, "b", [0], seq=-1, filters=False)
    for event in (data(0, 1), data(1, 0), moved(2, 0, 2)):
        resumed.event("b", event)
    assert [epoch.time for epoch in epochs(resumed)] == [0]
    assert not resumed.saw_whole(1)
