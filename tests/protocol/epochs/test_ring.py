"""A ring finds the boundary at which a reader can continue, and keeps the newest outcomes of all rings."""

import pytest
from tests.protocol.epochs.rings import cursor, ring_of

from epochal.protocol.epochs.ring import EpochRings
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.topics.filter import TopicFilter

# ---- where a reader continues ----


def test_a_reader_continues_anywhere_between_two_outcomes() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4))
    rings.move(ring, cursor(9))
    rings.append(ring, "nine", 1, cursor(10))
    assert [ring.place(cursor(time)) for time in range(3, 12)] == [None, 0, 1, 1, 1, 1, 1, 2, None]


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (cursor(5, unreported_aborts=(7,)), "an abort is still to be reported to it"),
        (cursor(5, aborted=(7,)), "an abort was reported to it that the ring may report again"),
        (cursor(5, seen_from=(8,)), "it asked only for what comes after 7, and the ring has what is before"),
        (cursor(5, topics=TopicFilter([b"a"])), "its epochs have other topics"),
        (cursor((5, 1), (4, 2)), "its frontier is another one"),
    ],
)
@pytest.mark.rule("E15", "E16", "E17")
def test_a_reader_that_lacks_something_else_does_not_continue_in_the_ring(reader: Cursor, why: str) -> None:
    start = cursor((5, 1)) if reader.frontier[0] == (5, 1) else cursor(5)
    _, ring = ring_of(start=start)
    assert ring.place(reader) is None, why
    assert ring.place(start) == 0


@pytest.mark.rule("E15", "E17")
@pytest.mark.parametrize(
    ("ring_at", "reader_at"),
    [
        (cursor(5, seen_from=(8,)), cursor(5)),  # the reader can see whole what the ring's subscription could not
        (cursor(5, aborted=(7,)), cursor(5)),  # the ring will not report an abort that the reader does not know
    ],
)
def test_a_reader_does_not_continue_in_a_ring_that_lacks_something(ring_at: Cursor, reader_at: Cursor) -> None:
    rings, ring = ring_of(start=ring_at)
    assert ring.place(reader_at) is None
    rings.move(ring, cursor(9))
    assert ring.place(cursor(7)) is None, "it could see 7 whole, and would get the report that 7 was aborted"
    assert ring.place(cursor(9)) == 0


@pytest.mark.rule("E17")
def test_a_reader_ahead_of_the_ring_does_not_go_back_to_its_frontier() -> None:
    rings, ring = ring_of(start=cursor(0, seen_from=(3,)))
    assert ring.place(cursor(3)) is None
    rings.move(ring, cursor(3))
    assert ring.place(cursor(3)) == 0


@pytest.mark.rule("E17")
def test_what_the_ring_has_lost_a_subscription_of_its_own_may_still_have() -> None:
    rings, ring = ring_of(start=cursor(5))
    rings.move(ring, cursor(5, seen_from=(8,)))
    assert ring.place(cursor(5)) is None


@pytest.mark.rule("E17")
def test_an_abort_that_waits_in_the_ring_is_reported_once() -> None:
    rings, ring = ring_of(start=cursor(5))
    rings.move(ring, cursor(9, unreported_aborts=(7,)))
    assert ring.place(cursor(9)) is None, "it was reported to that reader before"
    rings.append(ring, "7 aborted", 1, cursor(9))
    assert ring.place(cursor(5)) == ring.place(cursor(7)) == 0
    assert ring.place(cursor(9)) == 1


@pytest.mark.rule("E17")
def test_who_is_at_the_boundary_of_a_gap_gets_the_notice_and_who_is_past_it_does_not() -> None:
    rings, ring = ring_of(("four", cursor(5)), start=cursor(4))
    assert not rings.move(ring, cursor(5))
    assert rings.move(ring, cursor(9, seen_from=(9,)), [("a gap", 10), ("another", 10)])
    assert [ring[number] for number in range(1, ring.end)] == ["a gap", "another"]
    assert ring.place(cursor(5), cursor(5).to_json()) == 1
    assert ring.place(cursor(9, seen_from=(9,))) == 3


# ---- what is kept ----


def test_the_oldest_outcomes_of_all_rings_go_first_and_the_newest_stays() -> None:
    rings = EpochRings[str](9_000)
    one, other = rings.open(cursor(0)), rings.open(cursor(0))
    rings.append(one, "a", 1_000, cursor(1))
    rings.append(other, "b", 1_000, cursor(1))
    assert (one.first, other.first) == (0, 0)
    rings.append(other, "c", 1_000, cursor(2))
    assert (one.first, other.first, other[0]) == (1, 0, "b")
    rings.append(one, "large", 50_000, cursor(2))
    assert (one[1], 1 in one, 1 in other) == ("large", True, False)
    rings.close(one)
    assert rings.bytes == 0
    rings.append(other, "d", 10, cursor(3))
    assert 0 < rings.bytes < 9_000
