"""Where all that is gone of a history had only moved the frontier, nothing is lost for anyone who comes back (E13)."""

from collections.abc import Callable
from typing import Any

import pytest

from epochal.errors import HistoryTruncated, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import History, Lull, SegmentState, empty_state
from epochal.protocol.subscriber.effects import Began, EpochWasAborted, GapFound, Moved, Request
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.since import AfterEvent, From
from epochal.protocol.times import TimeShape

INT = TimeShape.parse("int")
MONDAY = 200


def forget(wiring: Any, *segments: str) -> None:
    """Retention drops all that the publishers have in memory so far."""
    for segment in segments or wiring.segments:
        history = wiring.publishers[segment].history
        kept, history._max_bytes = history._max_bytes, 0
        history.trim(wiring.now)
        history._max_bytes = kept
        assert history.truncated_at == history.last


def friday(wire_up: Any, **options: Any) -> tuple[Any, Any]:
    """Two segments, each with a batch at 4, which is complete; the writer holds 5."""
    wiring = wire_up(segments="01", **options)
    writer = wiring.writer()
    for segment in wiring.segments:
        writer.append(segment, 4, b"friday")
    writer.advance(5)
    return wiring, writer


def weekend(wiring: Any, writer: Any) -> None:
    """It only advances, and retention drops all."""
    for time in range(6, MONDAY + 1):
        writer.advance(time)
    forget(wiring)


def monday(writer: Any) -> None:
    """There are records again."""
    for segment in writer.wiring.segments:
        writer.append(segment, MONDAY, b"monday")
    writer.advance(MONDAY + 1)


def leave(reader: Any) -> None:
    reader.followers.clear()
    reader.prefixes.clear()


def by_cursor(wiring: Any) -> Callable[[], Any]:
    reader = wiring.reader(From.START)
    assert [time for time, _ in reader.epochs()] == [4]
    cursor = reader.machine.cursor()
    leave(reader)
    return lambda: wiring.reader(cursor=cursor)


def by_reconnecting(wiring: Any, **options: Any) -> Callable[[], Any]:
    reader = wiring.reader(From.START)
    assert [time for time, _ in reader.epochs()] == [4]
    leave(reader)

    def back() -> Any:
        for segment in wiring.segments:
            at = reader.machine.position(segment)
            reader.join(segment, at, continuing=True, least_incarnation=at.incarnation, **options)
        return reader

    return back


def by_polling(wiring: Any) -> Callable[[], Any]:
    return by_reconnecting(wiring, pushes=False)


def by_position(wiring: Any) -> Callable[[], Any]:
    ends = {segment: wiring.publishers[segment].seq for segment in wiring.segments}

    def back() -> Any:
        reader = wiring.reader(None)
        for segment, end in ends.items():
            reader.join(segment, AfterEvent(end))
        return reader

    return back


def by_times(wiring: Any) -> Callable[[], Any]:
    return lambda: wiring.reader(EpochQuery((5,)), wanted=(5,))


DOORS = [by_cursor, by_reconnecting, by_polling, by_position, by_times]


@pytest.mark.rule("E13", "E16", "E20")
@pytest.mark.parametrize("door", DOORS)
def test_after_a_quiet_weekend_everyone_goes_on_where_he_was(wire_up: Any, door: Any) -> None:
    wiring, writer = friday(wire_up)
    back = door(wiring)
    weekend(wiring, writer)
    reader = back()
    assert (reader.broke, reader.frontier) == ([], [MONDAY])
    assert not any(began.gap for _, began in reader.began)
    monday(writer)
    wiring.tick(2.0)
    assert reader.epochs() == [(MONDAY, [b"monday", b"monday"])]
    assert [event for event in reader.events() if isinstance(event, GapFound)] == []
    assert all(map(reader.machine.saw_whole, range(5, MONDAY + 1)))


@pytest.mark.rule("E13", "E20")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("lost", ["batch", "abort"])
def test_one_batch_or_abort_among_what_is_gone_is_a_loss(wire_up: Any, door: Any, lost: str) -> None:
    wiring, writer = friday(wire_up)
    back = door(wiring)
    writer.advance(6)
    if lost == "abort":
        wiring.publishers["0"].receive(writer.peers["0"], m.Abort(99, "0", (7,)), wiring.now)
        wiring.run()
    else:
        writer.append("0", 7, b"saturday")
    weekend(wiring, writer)
    reader = back()
    gaps = [began.gap for segment, began in reader.began if segment == "0"]
    assert reader.broke == [("0", HistoryTruncated.code)] or (door in (by_reconnecting, by_polling) and gaps[-1])
    assert not reader.machine.ready or not reader.machine.saw_whole(7)


@pytest.mark.rule("E13", "E15")
def test_all_that_is_retained_has_epochs_of_segments_that_were_not_quiet(wire_up: Any) -> None:
    """One that has nothing at all of them has all of it."""
    wiring, writer = friday(wire_up)
    writer.advance(6)
    writer.append("1", 7, b"sunday")
    for time in range(7, MONDAY + 1):
        writer.advance(time)
    forget(wiring, "0")
    reader = wiring.reader(From.START)
    assert reader.epochs() == [(7, [b"sunday"])]
    assert [reader.machine.saw_whole(time) for time in (4, 5, 7)] == [False, True, True]


@pytest.mark.rule("E13", "E15", "E20")
@pytest.mark.parametrize("begin", [From.START, EpochQuery((5,)), AfterEvent(6)])
def test_what_was_aborted_before_a_lull_stays_so_when_the_frontier_has_passed_it(wire_up: Any, begin: Any) -> None:
    wiring, writer = friday(wire_up)
    writer.append("0", 6, b"half")
    writer.append("1", 6, b"half")
    wiring.publishers["0"].receive(writer.peers["0"], m.Abort(99, "0", (6,)), wiring.now)
    wiring.run()
    end = wiring.publishers["0"].seq
    for time in range(6, MONDAY + 1):
        writer.advance(time)
    forget(wiring, "0")
    reader = wiring.reader(None, wanted=(5,) if isinstance(begin, EpochQuery) else None)
    reader.join("0", AfterEvent(end + 1) if isinstance(begin, AfterEvent) else begin)
    reader.join("1", AfterEvent(1) if isinstance(begin, AfterEvent) else begin)
    assert reader.broke == []
    told = [EpochWasAborted(6)] if isinstance(begin, EpochQuery) else []
    assert reader.epochs() == told, "half of it is at the other segment"
    assert not reader.machine.saw_whole(6)


@pytest.mark.rule("E13", "E7")
@pytest.mark.parametrize("records", [True, False])
def test_a_complete_stream_of_which_nothing_is_left_is_one_only_if_there_was_something(
    wire_up: Any, records: bool
) -> None:
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    if records:
        writer.append("0", 0, b"x")
    writer.append("1", 1, b"y")
    writer.advance(2)
    writer.leave(m.Leaving.FINISH)
    forget(wiring, "0")
    reader = wiring.reader(From.START)
    assert reader.machine.complete
    assert reader.epochs() == [(1, [b"y"])], "what the other segment has left is whole"
    assert not reader.machine.nothing_whole
    forget(wiring)
    reader = wiring.reader(From.START)
    assert (reader.epochs(), reader.machine.complete, reader.machine.nothing_whole) == ([], True, True)


# ---- the publisher ----


def ask(wiring: Any, since: m.Since) -> list[Any]:
    wiring.servers["0"].receive(b"peer", since, wiring.now)
    answers = [effect for effect in wiring.publishers["0"].take() if type(effect).__name__ == "SendAnswers"]
    return [message for answer in answers for message in answer.messages]


@pytest.mark.rule("E13")
def test_a_lull_opens_at_the_position_with_the_state_where_it_began(wire_up: Any) -> None:
    wiring, writer = friday(wire_up)
    began = wiring.publishers["0"].seq - 1
    assert wiring.log["0"][-1] == m.Frontier(began + 1, began, ((0, -1), (5, 1)))
    weekend(wiring, writer)
    writer.append("0", MONDAY, b"monday")
    end = wiring.publishers["0"].seq - 1
    for position in (m.Position(1, began), m.Position(1, began + 1), m.Position(1, end - 1), None):
        opening, chunk, event = ask(wiring, m.Since(1, "0", position, 1))
        at = m.Position(1, began) if position is None else position
        assert opening == m.Opening(1, at, (0,), (4,), (), (), end, (MONDAY,))
        assert (chunk, event.seq) == (m.Chunk(1, 1, True), end + 1)
    (opening, *_) = ask(wiring, m.Since(1, "0", m.Position(1, end), 1))
    assert opening == m.Opening(1, m.Position(1, end), (MONDAY,), (), ()), "nothing is gone after it"
    assert ask(wiring, m.Since(1, "0", m.Position(1, began - 1), 1)) == [m.Truncated(1, m.Position(1, end), (MONDAY,))]


@pytest.mark.rule("E13")
def test_a_disk_reports_where_the_lull_before_it_began(wire_up: Any) -> None:
    wiring, writer = friday(wire_up)
    history = wiring.publishers["0"].history
    for time in range(6, 30):
        writer.advance(time)
    since = SegmentState(3, (4,), (), ())
    history.archive(10, Lull(since, 10, (13,)))
    opening, *_ = ask(wiring, m.Since(1, "0", m.Position(1, 7), 1))
    assert history.first == -1, "the memory has more than the disk"
    assert opening.lull == -1
    forget(wiring)
    wiring.publishers["0"].take()
    wiring.servers["0"].receive(b"peer", m.Since(2, "0", m.Position(1, 7), 1), wiring.now)
    answer, read = wiring.publishers["0"].take()
    assert answer.messages == (m.Opening(2, m.Position(1, 7), (4,), (), (), (), 10, (13,)),)
    assert read.after == 10
    history.archive(10, None)
    wiring.servers["0"].receive(b"peer", m.Since(3, "0", m.Position(1, 7), 1), wiring.now)
    (find,) = wiring.publishers["0"].take()
    wiring.servers["0"].state_found(b"peer", 3, SegmentState(10, (13,), (), ()))
    (answer,) = wiring.publishers["0"].take()
    assert (find.seq, answer.messages) == (10, (m.Truncated(3, m.Position(1, 10), (13,)),))


@pytest.mark.rule("E13", "E20")
def test_retention_that_removes_progress_before_the_disk_has_answered_costs_nothing(wire_up: Any) -> None:
    wiring, writer = friday(wire_up)
    publisher, server = wiring.publishers["0"], wiring.servers["0"]
    for time in range(6, 30):
        writer.advance(time)
    forget(wiring)
    publisher.history.archive(-1, Lull(empty_state((0,)), -1, (0,)))
    publisher.take()
    server.receive(b"peer", m.Since(1, "0", m.Position(1, 7), 1), wiring.now)
    (find,) = publisher.take()
    assert find.seq == 7
    publisher.history.archive(10, Lull(SegmentState(3, (4,), (), ()), 10, (13,)))
    server.not_read(b"peer", 1, HistoryTruncated("gone"))
    answer, read = publisher.take()
    assert answer.messages == (m.Opening(1, m.Position(1, 7), (4,), (), (), (), 10, (13,)),)
    assert read.after == 10


@pytest.mark.rule("E13")
def test_what_ends_a_lull_in_memory() -> None:
    history = History(empty_state((0,)), max_bytes=0, max_age=0.0)
    events: list[m.Event] = [
        m.Frontier(0, -1, ((0, -1), (1, 1))),
        m.Frontier(1, 0, ((1, -1), (2, 1))),
        m.Data(2, 1, 3, b"", 1, 0, b""),
        m.Frontier(3, 2, ((2, -1), (4, 1))),
        m.Aborted(4, 3, (6,)),
        m.Frontier(5, 4, ((4, -1), (7, 1))),
    ]
    seen = []
    for seq, event in enumerate(events):
        history.append(event, float(seq))
        history.trim(seq + 1.0)
        seen.append(history.lull)
    assert seen == [
        Lull(SegmentState(-1, (0,), (), ()), 0, (1,)),
        Lull(SegmentState(-1, (0,), (), ()), 1, (2,)),
        Lull(SegmentState(2, (2,), (3,), ()), 2, (2,)),
        Lull(SegmentState(2, (2,), (3,), ()), 3, (4,)),
        Lull(SegmentState(4, (4,), (), (6,)), 4, (4,)),
        Lull(SegmentState(4, (4,), (), (6,)), 5, (7,)),
    ]


# ---- the reader ----


@pytest.mark.rule("E13", "S33")
@pytest.mark.parametrize("lower", [(3,), (2, 9)])
def test_a_lull_that_leads_back_is_refused(lower: Any) -> None:
    machine = SubscriberMachine("uid", INT, ["0"])
    machine.began("0", Began(1, SegmentState(4, (5,), (), ()), True, False, False))
    with pytest.raises(RemoteProtocolError, match="moves the frontier back"):
        machine.event("0", Moved(7, lower))


@pytest.mark.rule("E13", "S17")
def test_a_lull_counts_only_once_every_segment_has_begun() -> None:
    machine = SubscriberMachine("uid", INT, ["0", "1"])
    machine.began("0", Began(1, SegmentState(4, (5,), (), ()), True, False, False))
    machine.event("0", m.Frontier(5, 4, ((5, -1), (6, 1))))
    machine.event("0", Moved(9, (8,)))
    assert not machine.ready
    assert machine.position("0") == m.Position(1, 9)
    machine.began("1", Began(1, SegmentState(4, (7,), (), ()), True, False, False))
    assert list(machine.frontier) == [7]
    machine.event("1", Moved(5, (9,)))
    assert list(machine.frontier) == [8]


@pytest.mark.rule("E13", "E17")
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("begin", [m.Position(1, 3), EpochQuery((0,)), From.START])
def test_who_is_overtaken_by_retention_in_mid_answer_asks_whether_more_than_progress_is_gone(
    begin: Any, gone: bool
) -> None:
    follower = Follower(
        "uid", "0", begin, shape=INT, fresh_nonce=lambda: bytes(16), now=0.0,
        continuing=isinstance(begin, m.Position), pushes=False,
    )  # fmt: skip

    def asked() -> m.Since:
        (*_, effect) = follower.take()
        assert isinstance(effect, Request)
        assert isinstance(effect.message, m.Since)
        return effect.message

    follower.answered(m.Welcome(1, 1, bytes(8), 1, 20, 1000, 1.0, ("since:times",)), 0.0)
    first = asked()
    follower.answered(m.Opening(first.request, m.Position(1, 3), (0,), (), ()), 0.0)
    follower.answered(m.Chunk(first.request, 1, False), 0.0)
    follower.answered(m.Frontier(4, 3, ((0, -1), (1, 1))), 0.0)
    follower.answered(m.Refused(first.request, HistoryTruncated.code, "gone"), 0.0)
    again = asked()
    assert again.position == m.Position(1, 4)
    follower.reports()
    if not gone:
        follower.answered(m.Opening(again.request, m.Position(1, 4), (0,), (), (), (), 9, (6,)), 0.0)
        began, moved = follower.reports()
        assert isinstance(began, Began)
        assert (began.filters, began.gap, began.resumed, moved) == (False, False, True, Moved(9, (6,)))
        return
    follower.answered(m.Truncated(again.request, m.Position(1, 9), (6,)), 0.0)
    if isinstance(begin, EpochQuery):
        assert isinstance(follower.error, HistoryTruncated)
        return
    last = asked()
    assert last.position is None, "from what is left, with a gap"
    follower.answered(m.Opening(last.request, m.Position(1, 9), (6,), (), ()), 0.0)
    (began,) = follower.reports()
    assert isinstance(began, Began)
    assert began.gap
