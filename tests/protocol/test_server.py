"""What subscribers are given by a publisher: snapshots, history, heartbeats; and what they cannot do to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.recorded import record_all

from epochal.errors import HistoryTruncated, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import FindBeginning, Private, Push, ReadLog, SendAnswers
from epochal.protocol.publisher.server import CHUNK_EVENTS, SegmentServer, ServingSettings
from epochal.protocol.topics.filter import TopicFilter

NONCE = b"n" * 16
STREAM = "uid-of-the-stream"


@pytest.fixture
def wiring(wire_up):
    return wire_up()


def hello(request=1, nonce=NONCE, versions=(1,), stream=STREAM):
    return m.Hello(request, versions, stream, "0", nonce)


def ask(wiring, message, peer=b"peer"):
    """The answers that `message` gets at once."""
    wiring.servers["0"].receive(peer, message, wiring.now)
    return [each for e in wiring.publishers["0"].take() if isinstance(e, SendAnswers) for each in e.messages]


def fill(wiring, count):
    """A writer that appends `count` events."""
    writer = wiring.writer()
    for n in range(count):
        writer.machine.appends.append("0", 0, b"", 1, b"%d" % n)
    wiring.run()
    return writer


@pytest.mark.rule("E14", "S8")
def test_a_join_is_answered_with_a_channel_and_then_one_snapshot(wiring):
    fill(wiring, 3)
    (welcome,) = ask(wiring, hello())
    assert (welcome.request, welcome.version, welcome.incarnation, welcome.seq) == (1, 1, 1, 2)
    wiring.servers["0"].subscribed(NONCE, wiring.now)
    (private,) = wiring.publishers["0"].take()
    assert private == Private(NONCE, m.Snapshot(2, 1, NONCE, (0,), (0,), ()))
    wiring.servers["0"].subscribed(NONCE, wiring.now)
    assert not wiring.publishers["0"].take()  # never a second one, and no refusal that the first would get
    wiring.servers["0"].unsubscribed(NONCE)
    wiring.servers["0"].subscribed(NONCE, wiring.now)
    (private,) = wiring.publishers["0"].take()
    assert isinstance(private, Private)
    assert isinstance(private.message, m.Refused)


@pytest.mark.rule("S9", "E9")
def test_a_snapshot_comes_between_the_event_it_reflects_and_the_next(wiring):
    writer = fill(wiring, 1)
    ask(wiring, hello())
    publisher, server = wiring.publishers["0"], wiring.servers["0"]
    record_all(publisher)
    for number in (1, 2):
        writer.machine.appends.append("0", number, b"", 1, b"")
        (send,) = writer.machine.take()
        publisher.receive(writer.peers["0"], send.message, 0.0)
        if number == 1:
            server.subscribed(NONCE, 0.0)
    order: list[Any] = [e.message for e in publisher.take() if isinstance(e, Push | Private)]
    assert [getattr(message, "seq", None) for message in order] == [1, 1, 2]
    assert [type(message) for message in order] == [m.Data, m.Snapshot, m.Data]
    assert order[1].upper == (1,)


@given(st.lists(st.sampled_from(["append", "advance", "join"]), max_size=25))
@pytest.mark.rule("S9")
def test_every_joiner_sees_each_event_after_its_snapshot_once(wire_up, steps):
    wiring = wire_up()
    writer, readers = wiring.writer(), []
    time = 0
    for step in steps:
        match step:
            case "append":
                writer.append("0", time)
            case "advance":
                time += 1
                writer.advance(time)
            case "join":
                readers.append((wiring.reader(), wiring.publishers["0"].seq))
    for reader, seq in readers:
        (began,) = [began for _, began in reader.began]
        assert began.state.seq == seq
        assert reader.machine.position("0").seq == len(wiring.log["0"]) - 1
        assert reader.frontier == [time]
        assert reader.broke == []


@pytest.mark.rule("S22")
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=20))
def test_a_broadcast_reaches_all_who_are_there_after_any_joins_and_leaves(wire_up, steps):
    wiring = wire_up()
    writer = wiring.writer()
    present: list[Any] = []
    for n, (joins, which) in enumerate(steps):
        if joins or not present:
            present.append(wiring.reader())
        else:
            gone = present.pop(which % len(present))
            wiring.readers.remove(gone)
            for prefix in gone.prefixes["0"]:
                if prefix.startswith(b"P"):
                    wiring.servers["0"].unsubscribed(prefix[1:])
        writer.append("0", n, b"%d" % n)
        writer.advance(n + 1)
        for reader in present:
            assert reader.machine.position("0").seq == wiring.publishers["0"].seq
            assert reader.frontier == [n + 1]
        assert len(wiring.servers["0"].subscriptions) == len(present)


@pytest.mark.rule("S22")
@pytest.mark.parametrize("leaves", [[0], [0, 4], [1, 2], [3, 0]])
def test_the_last_and_the_middle_ones_are_served_after_others_left(wire_up, leaves):
    wiring = wire_up()
    writer = wiring.writer()
    readers = [wiring.reader() for _ in range(5)]
    for n in leaves:
        wiring.readers.remove(readers[n])
    writer.append("0", 0, b"a")
    writer.advance(1)
    stayed = [reader for n, reader in enumerate(readers) if n not in leaves]
    assert [reader.epochs() for reader in stayed] == [[(0, [b"a"])]] * len(stayed)


@pytest.mark.rule("S23", "Q14")
def test_who_leaves_is_forgotten_entirely(wiring):
    for n in range(50):
        nonce = b"%016d" % n
        ask(wiring, hello(nonce=nonce))
        wiring.servers["0"].subscribed(nonce, wiring.now)
        wiring.servers["0"].unsubscribed(nonce)
    wiring.tick(60, step=1.0)
    server = wiring.servers["0"]
    assert (server.subscriptions, server._pending, server._used) == ({}, {}, {})
    assert len(server.channels) == 1


@pytest.mark.rule("Q14", "Q7")
def test_of_one_who_pulls_nothing_is_kept_between_two_pulls(wiring):
    writer, reader = wiring.writer(), wiring.reader(None)
    reader.join("0", pushes=False)
    server = wiring.servers["0"]
    for time in range(30):
        writer.append("0", time)
        writer.advance(time + 1)
        wiring.tick(1.0)
        assert (server.subscriptions, server._answers) == ({}, {})
    assert [time for time, _ in reader.epochs()] == [*range(30)]
    assert (server._pending, server._used) == ({}, {})


@pytest.mark.rule("S23", "S24")
@pytest.mark.parametrize("wrong", [m.Heartbeat(1), m.Data(0, -1, 0, b"", 1, 0, b""), m.Alive("0"), m.Done(1, "0")])
def test_what_no_subscriber_may_send_is_refused_and_changes_nothing(wiring, wrong):
    reader = wiring.reader()
    with pytest.raises(RemoteProtocolError):
        wiring.servers["0"].receive(b"bad", wrong, 0.0)
    writer = wiring.writer()
    writer.append("0", 0, b"a")
    writer.advance(1)
    assert reader.epochs() == [(0, [b"a"])]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (hello(versions=(2, 3)), "version_mismatch"),
        (hello(versions=()), "version_mismatch"),
        (hello(stream="another"), "stream_gone"),
        (m.Since(1, "0", m.Position(1, 99), 1), "remote_protocol"),
        (m.Since(1, "0", m.Position(2, -1), 1), "remote_protocol"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(wiring, message, code):
    (refused,) = ask(wiring, message)
    assert (refused.op, refused.code) == (1, code)


@pytest.mark.rule("Q4", "E26")
def test_a_subscription_id_is_used_once(wiring):
    ask(wiring, hello())
    assert ask(wiring, hello(2))[0].code == "remote_protocol"
    wiring.servers["0"].subscribed(NONCE, wiring.now)
    wiring.servers["0"].unsubscribed(NONCE)
    assert ask(wiring, hello(3))[0].code == "remote_protocol"


@pytest.mark.rule("F11")
def test_a_second_subscription_to_an_id_that_lives_is_not_answered(wiring):
    ask(wiring, hello())
    for answers in (1, 0):  # what is sent reaches the subscriber whose id it is
        wiring.servers["0"].subscribed(NONCE, wiring.now)
        assert len(wiring.publishers["0"].take()) == answers


def test_a_hello_without_a_subscription_expires(wiring):
    ask(wiring, hello())
    wiring.tick(12)
    wiring.servers["0"].subscribed(NONCE, wiring.now)
    (private,) = wiring.publishers["0"].take()
    assert private.message.code == "remote_protocol"
    assert wiring.servers["0"].subscriptions == {}


@pytest.mark.rule("S24")
def test_hellos_and_answers_under_way_are_bounded(wire_up):
    wiring = wire_up()
    fill(wiring, 3)
    settings = ServingSettings(max_pending=2, max_answers=2)
    wiring.servers["0"] = SegmentServer(wiring.publishers["0"], Channels(lambda: b"12345678"), settings, 0.0)
    codes = [type(ask(wiring, hello(n, b"%016d" % n))[0]) for n in range(3)]
    assert codes == [m.Welcome, m.Welcome, m.Refused]
    kinds = [type(ask(wiring, m.Since(n, "0", None, 0))[0]) for n in range(3)]
    assert kinds == [m.Opening, m.Opening, m.Refused]
    wiring.tick(70)
    assert type(ask(wiring, m.Since(9, "0", None, 0))[0]) is m.Opening


# ---- history ----


@pytest.mark.rule("Q3", "E20")
def test_the_answer_is_the_events_after_the_position_paced_by_credit(wiring):
    fill(wiring, 3 * CHUNK_EVENTS)
    opening, chunk, *events = ask(wiring, m.Since(5, "0", m.Position(1, 9), 1))
    assert opening == m.Opening(5, m.Position(1, 9), (0,), (0,), ())
    assert chunk == m.Chunk(5, CHUNK_EVENTS, False)
    assert [event.seq for event in events] == list(range(10, 10 + CHUNK_EVENTS))
    more = ask(wiring, m.Credit(5, 10))
    chunks = [each for each in more if isinstance(each, m.Chunk)]
    assert [each.last for each in chunks] == [False, True]
    assert [each.seq for each in more if isinstance(each, m.Data)] == list(range(10 + CHUNK_EVENTS, 3 * CHUNK_EVENTS))
    assert ask(wiring, m.Credit(5, 1)) == []  # it is over


def publish(wiring, epochs):
    """One event an epoch; epoch T begins behind event 2 T - 1."""
    writer = wiring.writer()
    for time in range(epochs):
        writer.append("0", time, b"%d" % time)
        writer.advance(time + 1)
    return writer


def wants(*times, request=1, position=None):
    return m.Since(request, "0", position, 64, times)


@pytest.mark.rule("E20")
def test_what_comes_before_the_first_wanted_epoch_is_not_sent(wiring):
    publish(wiring, 300)
    (welcome,) = ask(wiring, hello())
    assert "since:times" in welcome.features
    opening, chunk, *events = ask(wiring, wants(290))
    assert opening == m.Opening(1, m.Position(1, 579), (290,), (), ())
    assert chunk == m.Chunk(1, 20, True)
    assert [event.seq for event in events] == [*range(580, 600)]
    everything = [each for each in ask(wiring, m.Since(2, "0", None, 64)) if isinstance(each, m.Data)]
    assert len(everything) == 300
    assert everything[290:] == events[::2]


@pytest.mark.rule("E20")
@pytest.mark.parametrize(("wanted", "seq"), [((), 9), ((0,), -1), ((5,), 9), ((99,), 9), ((3, 4), 5)])
def test_it_begins_with_the_log_and_ends_with_it(wiring, wanted, seq):
    publish(wiring, 5)
    opening, chunk, *events = ask(wiring, wants(*wanted))
    assert opening.position == m.Position(1, seq)
    assert [event.seq for event in events] == [*range(seq + 1, 10)]
    assert chunk.last


@pytest.mark.rule("E20", "E13", "Q2")
def test_where_wanted_epochs_began_before_what_is_retained_that_is_all_sent(wire_up):
    wiring = wire_up(retention_bytes=2_000)
    publish(wiring, 30)
    first = wiring.publishers["0"].history.first
    opening, _, *events = ask(wiring, wants(2))
    assert opening.position == m.Position(1, first)
    assert opening.lower > (2,)  # so that the asker knows
    assert [event.seq for event in events] == [*range(first + 1, 60)]


@pytest.mark.rule("E20", "S24")
@pytest.mark.parametrize(
    ("message", "code"),
    [
        (wants(*range(33)), "limit_exceeded"),
        (wants((1, 2)), "time_shape"),
        (wants(3, ()), "time_shape"),
        (wants(3, position=m.Position(1, 2)), "remote_protocol"),
    ],
)
def test_times_that_cannot_be_wanted_are_refused_and_nothing_is_kept_of_the_question(wiring, message, code):
    publish(wiring, 5)
    (refused,) = ask(wiring, message)
    assert (refused.op, refused.code) == (1, code)
    assert wiring.servers["0"]._answers == {}


def stored(wire_up):
    """A publisher that has dropped from memory what is on disk: 30 epochs, of which some are left."""
    wiring = wire_up(memory_bytes=2_000)
    publish(wiring, 30)
    history = wiring.publishers["0"].history
    history.archived = -1
    assert 20 < history.truncated_at < 57
    return wiring, history.truncated_at


def effects(wiring, message):
    wiring.servers["0"].receive(b"peer", message, wiring.now)
    return wiring.publishers["0"].take()


@pytest.mark.rule("E20")
def test_the_disk_is_asked_only_for_what_is_not_in_memory(wire_up):
    wiring, truncated_at = stored(wire_up)
    (opening, *_) = ask(wiring, wants(29))
    assert opening.position == m.Position(1, 57)
    (find,) = effects(wiring, wants(4, request=2))
    assert find == FindBeginning(b"peer", 2, EpochQuery((4,)))
    wiring.servers["0"].state_found(b"peer", 2, SegmentState(7, (4,), (), ()))
    opened, read = wiring.publishers["0"].take()
    assert opened == SendAnswers(b"peer", (m.Opening(2, m.Position(1, 7), (4,), (), ()),))
    assert isinstance(read, ReadLog)
    assert read.after == 7 < truncated_at


@pytest.mark.rule("E20")
def test_what_is_read_from_the_disk_is_paced_by_credit_as_well(wire_up):
    wiring, truncated_at = stored(wire_up)
    publisher, server = wiring.publishers["0"], wiring.servers["0"]
    effects(wiring, m.Since(2, "0", m.Position(1, 7), 2))
    server.state_found(b"peer", 2, SegmentState(7, (4,), (), ()))
    _, first = publisher.take()
    assert (type(first), first.after) == (ReadLog, 7)
    server.was_read(b"peer", 2, 9)
    (second,) = publisher.take()
    assert (type(second), second.after) == (ReadLog, 9)
    server.was_read(b"peer", 2, 11)
    assert publisher.take() == [], "both chunks that were allowed have been sent"
    assert server.answering == 1
    (third,) = effects(wiring, m.Credit(2, 1))
    assert (type(third), third.after) == (ReadLog, 11)
    assert truncated_at > 11


@pytest.mark.rule("E20", "E13")
def test_retention_that_is_faster_than_the_question_has_it_asked_again(wire_up):
    """Fault 31: of what is left on disk, or, where that is all, of what is in memory."""
    wiring, truncated_at = stored(wire_up)
    publisher, server = wiring.publishers["0"], wiring.servers["0"]
    effects(wiring, wants(10))
    publisher.history.archived = 7
    server.not_read(b"peer", 1, HistoryTruncated("gone"))
    assert publisher.take() == [FindBeginning(b"peer", 1, EpochQuery((10,)))]
    publisher.history.archived = truncated_at
    server.not_read(b"peer", 1, HistoryTruncated("gone"))
    opening, _, *events = [message for answer in publisher.take() for message in answer.messages]
    assert opening.position == m.Position(1, truncated_at)
    assert [event.seq for event in events] == [*range(truncated_at + 1, 60)]


@pytest.mark.parametrize("position", [None, m.Position(1, -1)])
def test_the_start_of_an_empty_log_is_an_empty_answer(wiring, position):
    assert ask(wiring, m.Since(1, "0", position, 1)) == [
        m.Opening(1, m.Position(1, -1), (0,), (), ()),
        m.Chunk(1, 0, True),
    ]


@pytest.mark.rule("E13", "Q2")
def test_what_is_no_longer_retained_is_said_to_be_gone(wire_up):
    wiring = wire_up(retention_bytes=2_000)
    writer = wiring.writer()
    for time in range(30):
        writer.append("0", time, b"")
        writer.advance(time + 1)
    first = wiring.publishers["0"].history.truncated_at
    state = wiring.publishers["0"].history.state_at(first)
    assert first > 0
    (truncated,) = ask(wiring, m.Since(1, "0", m.Position(1, first - 2), 8))
    assert truncated == m.Truncated(1, m.Position(1, first), tuple(state.lower.frontier))
    opening, *_ = ask(wiring, m.Since(2, "0", None, 8))
    assert (opening.position, opening.lull) == (m.Position(1, first - 1), first), (
        "event `first` moved only the frontier"
    )


@pytest.mark.rule("E13", "S33")
def test_a_position_in_an_earlier_life_is_said_to_be_gone(wiring):
    fill(wiring, 3)
    wiring.writers.clear()
    wiring.start_publisher("0", 2)
    (truncated,) = ask(wiring, m.Since(1, "0", m.Position(1, 1), 8))
    assert truncated.first_available == m.Position(2, -1)


def test_retention_that_overtakes_a_slow_reader_is_said(wire_up):
    wiring = wire_up(retention_bytes=100_000)
    writer = fill(wiring, 400)
    assert type(ask(wiring, m.Since(1, "0", None, 0))[0]) is m.Opening
    for time in range(1, 10):
        writer.advance(time)
        writer.append("0", time, b"x" * 60_000)
    (refused,) = ask(wiring, m.Credit(1, 1))
    assert (refused.op, refused.code) == (1, "history_truncated")


@pytest.mark.rule("Q1")
def test_a_heartbeat_names_the_last_event(wiring):
    fill(wiring, 2)
    wiring.tick(3, step=0.25)
    beats = [message for message in wiring.log["0"] if isinstance(message, m.Heartbeat)]
    assert beats == [m.Heartbeat(1)] * 3


def test_a_request_number_that_is_under_way_cannot_be_used_again(wiring):
    """Else one peer could have any number of answers under way, each within the bound."""
    fill(wiring, CHUNK_EVENTS * 3)
    assert isinstance(ask(wiring, m.Since(1, "0", None, 1))[0], m.Opening)
    (refused,) = ask(wiring, m.Since(1, "0", None, 1))
    assert "request 1 is under way" in refused.detail
    assert isinstance(ask(wiring, m.Credit(1, 1))[0], m.Chunk)


# ---- some topics ----


def topical(wiring, count):
    """A writer that appends `count` batches, every tenth of topic a, and moves on at the end."""
    writer = wiring.writer()
    for n in range(count):
        writer.machine.appends.append("0", 0, b"a" if n % 10 == 0 else b"b", 1, b"%d" % n)
    wiring.run()
    writer.advance(1)
    return writer


@pytest.mark.rule("F10")
def test_a_filtered_answer_has_what_is_wanted_and_says_how_far_it_goes(wiring):
    writer = topical(wiring, 5_000)
    server, publisher = wiring.servers["0"], wiring.publishers["0"]
    last = publisher.seq
    opening, *rest = ask(wiring, m.Since(1, "0", m.Position(1, 9), 1, None, ((b"a",), ())))
    found: list[m.Message] = []
    ends = []
    while True:
        assert isinstance(opening, m.Opening)
        chunk, *events = rest
        assert isinstance(chunk, m.Chunk)
        assert chunk.events == len(events)
        found += events
        ends.append(chunk.upto)
        if chunk.last:
            break
        assert publisher.take() == []  # no credit
        rest = ask(wiring, m.Credit(1, 1))
    assert ends == sorted(ends)
    assert ends[-1] == last
    assert len(ends) < 5
    assert [event.seq for event in found if isinstance(event, m.Data)] == [*range(10, 5_000, 10)]
    assert [type(event) for event in found[-1:]] == [m.Frontier]
    assert server.answering == 0
    for _ in range(3):
        writer.append("0", 1, b"of no topic")
    _, chunk, *events = ask(wiring, m.Since(2, "0", m.Position(1, last), 1, None, ((b"a",), ())))
    assert (chunk, events) == (m.Chunk(2, 0, True, last + 3), [])


@pytest.mark.rule("F10", "S12")
def test_an_answer_from_disk_is_filtered_there(wiring):
    topical(wiring, 20)
    server, publisher = wiring.servers["0"], wiring.publishers["0"]
    publisher.history.archived = -1
    publisher.history._max_bytes = 0
    publisher.history.trim(0.0)
    server.receive(b"p", m.Since(1, "0", m.Position(1, 3), 2, None, ((b"a",), ())), 0.0)
    (find,) = publisher.take()
    server.state_found(b"p", 1, SegmentState(3, (0,), (0,), ()))
    *_, read = publisher.take()
    assert (type(find).__name__, type(read), read.topics) == ("FindState", ReadLog, TopicFilter([b"a"]))


@pytest.mark.rule("F6", "F12")
def test_a_reader_that_names_its_filter_gets_the_channel_of_that_or_learns_that_there_is_none(wiring):
    server = wiring.servers["0"]
    server.channels._most = 2
    wanted, same, other = ((b"a",), (b"ab",)), ((b"a", b"aa"), (b"ab", b"c")), ((b"b",), ())
    welcomes = [
        ask(wiring, m.Hello(n, (1,), STREAM, "0", b"%016d" % n, named))[0]
        for n, named in enumerate((None, wanted, same, other))
    ]
    everything, first, second, coarse = (welcome.channel for welcome in welcomes)
    assert first == second != everything == coarse == server.channels.everything.token
    assert [welcome.coarse for welcome in welcomes] == [False, False, False, True]
    assert {m.FILTER_CHANNELS, m.SINCE_FILTER} <= set(welcomes[0].features)
