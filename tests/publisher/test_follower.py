"""A reader's place in a segment's history, where the real process gets there too rarely to wait for it."""

from types import SimpleNamespace
from typing import Any

import pytest

from epochal.errors import Unavailable
from epochal.protocol import messages as m
from epochal.protocol.log.history import History, SegmentState, empty_state
from epochal.protocol.messages import Position
from epochal_publisher.errors import EventsTruncated
from epochal_publisher.segments.follower import HistoryFollower, NamedPlace, PassedLull


def reader(events: int, max_bytes: int = 10**6, told: int | None = None) -> HistoryFollower:
    """A reader before the first of some events of a segment without a disk, all of which were told but for `told`."""
    history = History(empty_state((0,)), max_bytes=max_bytes, max_age=60.0)
    history.incarnations = [(1, 0)]
    for seq in range(events):
        history.append(m.Data(seq, seq - 1, 0, b"", 1, 0, b"x"), 0.0)
    publisher = SimpleNamespace(history=history, incarnation=1, seq=history.last)
    told_seq = history.last if told is None else told
    served: Any = SimpleNamespace(
        publisher=publisher, store=None, published_seq=told_seq, published_lower=((0,),), listeners=set()
    )
    process: Any = SimpleNamespace(http_closing=False)
    follower = HistoryFollower(process, served)
    follower.at = -1
    return follower


@pytest.mark.rule("E9", "E12")
async def test_a_reader_of_events_that_are_gone_does_not_wait_in_a_circle_for_what_may_not_be_published_yet() -> None:
    """After a stall nothing is told before the lease stands again; retention may overtake what was told meanwhile."""
    follower = reader(3, max_bytes=250, told=0)
    with pytest.raises(Unavailable):
        await follower.next(10, 1000)


@pytest.mark.rule("E13")
async def test_a_reader_that_was_slower_than_retention_and_lost_only_progress_is_asked_to_ask_again() -> None:
    follower = reader(1)
    history = follower.served.publisher.history
    for seq in range(1, 5):
        history.append(m.Frontier(seq, seq - 1, ((seq - 1, -1), (seq, 1))), 0.0)
    history.append(m.Aborted(5, 4, (9,)), 0.0)
    history.append(m.Frontier(6, 5, ((4, -1), (12, 1))), 0.0)
    history.append(m.Frontier(7, 6, ((12, -1), (13, 1))), 0.0)
    follower.served.published_seq = 7
    history.trim(61.0)
    follower.at = 4
    with pytest.raises(EventsTruncated):
        await follower.next(10, 10**6)
    follower.at = 5
    with pytest.raises(PassedLull):
        await follower.next(10, 10**6)
    assert follower.at == 7
    state = await follower.open(Position(1, 6))
    assert (follower.at, state) == (7, SegmentState(7, (13,), (), (9,))), "also what the frontier has passed since"
    assert await follower.open(NamedPlace.START) == state
    assert await follower.open(Position(1, 7)) == SegmentState(7, (13,), (), ())


@pytest.mark.rule("E9")
async def test_what_was_not_published_yet_is_not_given() -> None:
    follower = reader(5, told=2)
    assert [event.seq for event in await follower.next(10, 10**6)] == [0, 1, 2]
    assert not await follower.next(10, 10**6)


@pytest.mark.rule("Q3")
@pytest.mark.parametrize(("count", "size"), [(2, 10**6), (10, 250), (10, 1)])
async def test_each_read_continues_where_the_last_one_ended_however_it_was_bounded(count: int, size: int) -> None:
    follower, found = reader(7), list[int]()
    while events := await follower.next(count, size):
        assert len(events) <= 2
        found += [event.seq for event in events]
    assert found == list(range(7))


@pytest.mark.rule("Q1", "E12")
def test_an_event_is_named_by_the_incarnation_that_it_is_of() -> None:
    follower = reader(5)
    follower.served.publisher.history.incarnations = [(1, 0), (3, 2), (4, 4)]
    assert [tuple(follower.position_of(seq)) for seq in range(-1, 5)] == [
        (1, -1),
        (1, 0),
        (1, 1),
        (3, 2),
        (3, 3),
        (4, 4),
    ]


@pytest.mark.rule("Q14")
@pytest.mark.parametrize("news", [True, False])
async def test_of_who_waited_for_news_nothing_is_kept(news: bool) -> None:
    follower = reader(3)
    follower.at = 1 if news else 2
    assert await follower.news(0.001) is news
    assert not follower.served.listeners
