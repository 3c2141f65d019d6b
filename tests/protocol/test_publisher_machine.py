"""The publisher of a segment: capabilities, epochs, writers that leave or are lost, sessions, finishing, restarts."""

import google_crc32c
import pytest
from tests.protocol.recorded import recorded_publisher

from epochal.errors import RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.progress import EpochState
from epochal.protocol.publisher.effects import AskRecord, Push, Reply, ReportFinishing
from epochal.protocol.publisher.limits import STATE_BYTES, PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.subscriber.effects import EpochWasAborted
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import MAX_TIME, Time, TimeShape, less_equal
from epochal.protocol.writer.effects import Acked, Failed, Moved, Over, Reconnect, SessionReady

INT = TimeShape.parse("int")


def lower(wiring, segment="0"):
    return list(wiring.publishers[segment].progress.lower.frontier)


def kinds(wiring, segment="0"):
    return [type(message).__name__ for message in wiring.log[segment]]


def fresh(**settings):
    return recorded_publisher(INT, **settings)


def opening(writer="w", session=1, resume=None, under=None):
    return m.Open(1, "uid", "0", writer, session, under, resume)


def append(number, time, payload=b"x", crc=None):
    return m.Append("0", number, time, b"", 1, google_crc32c.value(payload) if crc is None else crc, payload)


def replies(publisher, peer=b"peer"):
    return [effect.message for effect in publisher.take() if isinstance(effect, Reply) and effect.peer == peer]


# ---- epochs and frontiers ----


@pytest.mark.rule("S1")
def test_the_first_record_makes_an_epoch_active_and_a_skipped_one_completes_without(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    progress = wiring.publishers["0"].progress
    assert {progress.state(time) for time in (0, 1, 2)} == {EpochState.LATENT}
    writer.append("0", 1)
    assert [progress.state(time) for time in (0, 1, 2)] == [EpochState.LATENT, EpochState.ACTIVE, EpochState.LATENT]
    writer.advance(2)
    assert [progress.state(time) for time in (0, 1, 2)] == [
        EpochState.COMPLETED,
        EpochState.COMPLETED,
        EpochState.LATENT,
    ]


@pytest.mark.rule("S3")
def test_a_fresh_publisher_holds_bottom_and_nothing_is_active():
    publisher = SegmentPublisher("uid", "0", PublisherSettings(TimeShape.parse("(int, int)")), incarnation=1, now=0.0)
    state = publisher.state()
    assert (state.seq, state.lower, state.active, state.aborted) == (m.NOTHING_YET, ((0, 0),), (), ())


@pytest.mark.rule("S5")
def test_capabilities_that_change_below_the_surface_log_and_push_nothing(wire_up):
    wiring = wire_up()
    first, second = wiring.writer("w1"), wiring.writer("w2")
    assert wiring.log["0"] == []  # both hold 0, and so did the publisher
    first.advance(7)
    assert wiring.log["0"] == []
    second.advance(3)
    assert wiring.log["0"] == [m.Frontier(0, -1, ((0, -1), (3, 1)))]


@pytest.mark.rule("S35")
def test_an_append_below_what_is_held_is_refused_and_leaves_no_trace():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", m.Hold(2, "0", (5,)), 0.0)
    publisher.take()
    publisher.receive(b"peer", append(0, 4), 0.0)
    (refused,) = replies(publisher)
    assert (refused.number, refused.code) == (0, "capability")
    assert publisher.seq == 0
    publisher.receive(b"peer", m.Hold(3, "0", (4,)), 0.0)
    assert replies(publisher)[0].code == "capability"
    assert list(publisher.progress.lower.frontier) == [5]


@pytest.mark.rule("S35")
def test_progress_never_overtakes_the_data_that_it_closes(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.machine.appends.append("0", 0, b"", 1, b"a")
    writer.machine.advance(1)
    writer.machine.appends.append("0", 1, b"", 1, b"b")
    writer.machine.advance(2)
    wiring.run()
    closed: Time = 0
    for event in wiring.log["0"]:
        if isinstance(event, m.Data):
            assert less_equal(closed, event.time)
        elif isinstance(event, m.Frontier):
            closed = event.changes[-1][0]
    assert closed == 2
    assert kinds(wiring).count("Data") == 2


def test_a_time_of_another_shape_is_refused():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", append(0, (1, 2)), 0.0)
    assert replies(publisher)[-1].code == "time_shape"
    publisher.receive(b"peer", m.Hold(2, "0", ((1, 2),)), 0.0)
    assert replies(publisher)[-1].code == "time_shape"
    publisher.receive(b"other", opening("w2", resume=m.Resume(3, ((1, 2),), ())), 0.0)
    assert replies(publisher, b"other")[-1].code == "time_shape"
    publisher.receive(b"other", opening("w2", resume=m.Resume(3, (), ((1, 2),))), 0.0)
    assert replies(publisher, b"other")[-1].code == "time_shape"
    assert publisher.writers == ["w"]


def test_a_damaged_payload_is_not_logged_and_is_asked_for_again(wire_up):
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.take()
    publisher.receive(b"peer", append(0, 0, crc=1), 0.0)
    assert [type(reply) for reply in replies(publisher)] == [m.Lost]
    assert publisher.seq == m.NOTHING_YET


@pytest.mark.rule("S34")
def test_what_a_batch_says_wrongly_of_itself_is_counted_left_out_and_the_batch_is_logged() -> None:
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    told = [m.Meta(key=b"k", ignored=2), m.Meta(ignored=1), m.Meta(key=b"k"), None]
    for number, meta in enumerate(told):
        publisher.receive(b"peer", append(number, 0)._replace(meta=meta), 0.0)
    pushed = [effect.message for effect in publisher.take() if isinstance(effect, Push)]
    data = [event for event in pushed if isinstance(event, m.Data)]
    assert [event.meta for event in data] == [m.Meta(key=b"k"), None, m.Meta(key=b"k"), None]
    assert publisher.ignored_meta == 3


def test_what_a_batch_says_of_itself_counts_as_bytes_of_its_epoch_and_of_the_history() -> None:
    sizes = []
    for meta in (None, m.Meta(key=b"k" * 10, headers=((b"name", b"value"),), tracestate=b"v" * 5)):
        publisher = fresh()
        publisher.receive(b"peer", opening(), 0.0)
        before = publisher.history.bytes, publisher.untaken_bytes
        publisher.receive(b"peer", append(0, 0)._replace(meta=meta), 0.0)
        sizes.append((publisher.history.bytes - before[0], publisher.untaken_bytes - before[1]))
    assert [after - less for less, after in zip(*sizes, strict=True)] == [24, 24]


@pytest.mark.rule("E6")
@pytest.mark.parametrize("taken", [False, True], ids=["nobody yet", "another"])
def test_the_end_of_a_session_that_has_left_is_not_reported_to_the_next_user_of_its_connection(taken: bool) -> None:
    publisher = fresh()
    publisher.receive(b"peer", opening("first"), 0.0)
    publisher.receive(b"peer", m.Leave(2, "0", m.Leaving.CLOSE), 0.0)
    if taken:
        publisher.receive(b"peer", opening("second"), 0.0)
    publisher.take()
    publisher.receive(b"other", opening("first", session=2), 0.0)
    assert replies(publisher) == []
    publisher.receive(b"peer", opening("second"), 0.0)
    publisher.receive(b"peer", append(0, 0), 0.0)
    assert [type(message) for message in replies(publisher)] == [m.Opened, m.Ack]


def test_what_no_writer_may_send_is_a_protocol_error():
    with pytest.raises(RemoteProtocolError):
        fresh().receive(b"peer", m.Heartbeat(1), 0.0)


def test_a_peer_that_has_not_opened_is_asked_to():
    publisher = fresh()
    for message in (append(0, 0), m.Alive("0"), m.Hold(1, "0", (3,))):
        publisher.receive(b"peer", message, 0.0)
        assert [type(reply) for reply in replies(publisher)] == [m.Lost]
    assert publisher.seq == m.NOTHING_YET


# ---- aborts and lost writers: E2, E3, E4 ----


@pytest.mark.rule("E2")
def test_an_aborted_epoch_is_final(wire_up):
    wiring = wire_up()
    first, second = wiring.writer("w1"), wiring.writer("w2")
    reader = wiring.reader()
    first.append("0", 4, b"a")
    first.machine.abort(4)
    wiring.run()
    assert wiring.publishers["0"].progress.state(4) is EpochState.ABORTED
    before = wiring.publishers["0"].seq
    second.append("0", 4, b"b")  # it has not heard of the abort
    assert second.errors() == ["epoch_aborted"]
    assert wiring.publishers["0"].seq == before
    second.machine.reports()
    with pytest.raises(Exception, match="aborted"):
        second.machine.raise_failure()
    first.advance(5)
    second.advance(5)
    assert reader.epochs() == [EpochWasAborted(4)]
    assert wiring.publishers["0"].progress.upper.active == frozenset()


@pytest.mark.rule("E3")
def test_a_lost_writer_aborts_exactly_what_it_appended_at_and_holds(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    lost, other = wiring.writer("lost"), wiring.writer("other")
    reader = wiring.reader()
    lost.append("0", 0, b"left behind")
    lost.advance(1)
    lost.append("0", 1, b"half")
    lost.append("0", 3, b"half")
    other.append("0", 2, b"whole")
    wiring.writers.remove(lost)  # it sends no heartbeat any more
    wiring.tick(6)
    aborts = [event.times for event in wiring.log["0"] if isinstance(event, m.Aborted)]
    assert aborts == [(1, 3)]
    other.advance(9)
    assert reader.epochs() == [
        (0, [b"left behind"]), EpochWasAborted(1), (2, [b"whole"]), EpochWasAborted(3),
    ]  # fmt: skip


@pytest.mark.rule("E3")
def test_the_abort_is_logged_before_the_release(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    lost, other = wiring.writer("lost"), wiring.writer("other")
    other.advance(8)
    lost.append("0", 2)
    wiring.writers.remove(lost)
    wiring.tick(6)
    events = [event for event in wiring.log["0"] if not isinstance(event, m.Heartbeat)]
    assert [type(event) for event in events] == [m.Data, m.Aborted, m.Frontier]
    assert lower(wiring) == [8]


@pytest.mark.rule("E3")
def test_the_last_writer_to_be_lost_completes_nothing(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    writer = wiring.writer()
    writer.advance(2)
    wiring.writers.remove(writer)
    wiring.tick(60)
    assert lower(wiring) == [2]
    successor = wiring.writer("w", session=2)
    assert successor.of(SessionReady) == [SessionReady((2,))]
    successor.append("0", 2)
    successor.advance(3)
    assert lower(wiring) == [3]


@pytest.mark.rule("E3")
def test_a_writer_lost_at_one_segment_aborts_at_all_and_must_open_again(wire_up):
    wiring = wire_up(segments="01", writer_timeout=5.0)
    writer = wiring.writer()
    other = wiring.writer("other")
    reader = wiring.reader()
    writer.append("0", 0, b"a")
    writer.append("1", 0, b"b")
    writer.hold_back("0")
    wiring.tick(6)
    assert writer.errors()[-1] == "writer_lost"
    other.advance(1)
    assert reader.epochs() == [EpochWasAborted(0)]
    again = wiring.writer("w", session=2)
    assert again.of(SessionReady) == [SessionReady((1,))]
    again.append("0", 1, b"c")
    again.advance(2)
    other.advance(2)
    assert reader.epochs() == [(1, [b"c"])]
    again.machine.raise_failure()


@pytest.mark.rule("E3")
def test_a_new_session_aborts_the_epochs_that_its_lost_one_still_holds_elsewhere(wire_up):
    wiring = wire_up(segments="01", writer_timeout=5.0)
    writer, other = wiring.writer(), wiring.writer("other")
    reader = wiring.reader()
    writer.append("0", 0, b"a")
    writer.append("1", 0, b"b")
    wiring.writers.remove(writer)
    other.advance(3)
    wiring.publishers["0"].tick(0.9)
    for now in range(2, 8):  # only segment 0 sees time pass
        wiring.publishers["0"].receive(other.peers["0"], m.Alive("0"), now * 0.9)
        wiring.publishers["0"].tick(now * 0.9)
    wiring.run()
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([3], [0])
    again = wiring.writer("w", session=2)
    assert again.of(SessionReady) == [SessionReady((3,))]
    assert again.of(Failed) == []
    again.machine.raise_failure()
    again.advance(4)
    other.advance(4)
    assert again.of(Failed) == []
    assert reader.epochs() == [EpochWasAborted(0)]
    assert reader.frontier == [4]


@pytest.mark.rule("E4")
@pytest.mark.parametrize(
    ("how", "expected"), [(m.Leaving.ABORT, [EpochWasAborted(0)]), (m.Leaving.CLOSE, [(0, [b"a"])])]
)
def test_leaving_by_an_exception_aborts_and_closing_states_that_all_is_whole(wire_up, how, expected):
    wiring = wire_up()
    writer, other = wiring.writer("w1"), wiring.writer("w2")
    reader = wiring.reader()
    writer.append("0", 0, b"a")
    writer.leave(how)
    assert writer.machine.over
    other.advance(1)
    assert reader.epochs() == expected


@pytest.mark.rule("E4")
def test_abort_takes_one_epoch_and_leaves_the_others(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    for time in (0, 1):
        writer.append("0", time, b"%d" % time)
        writer.append("1", time, b"%d" % time)
    writer.machine.abort(0)
    wiring.run()
    writer.advance(2)
    assert reader.epochs() == [EpochWasAborted(0), (1, [b"1", b"1"])]


@pytest.mark.rule("E6", "E11")
def test_a_session_that_has_left_and_opens_again_holds_nothing_and_is_not_waited_for():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", m.Leave(2, "0", m.Leaving.CLOSE), 0.0)
    assert publisher.writers == []
    publisher.take()
    publisher.receive(b"again", opening(), 1.0)  # the answer to its leave was lost
    (opened,) = replies(publisher, b"again")
    assert (opened.held, publisher.writers) == ((), [])
    publisher.receive(b"again", m.Leave(3, "0", m.Leaving.CLOSE), 1.0)
    assert replies(publisher, b"again") == [m.Done(3, "0")]
    assert publisher.writers == []


def test_an_append_after_leaving_is_refused():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", m.Leave(2, "0", m.Leaving.CLOSE), 0.0)
    publisher.take()
    publisher.receive(b"peer", append(0, 0), 0.0)
    assert replies(publisher)[-1].code == "capability"


def test_draining_aborts_what_is_active(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0)
    wiring.publishers["0"].drain()
    wiring.run()
    writer.advance(1)
    assert reader.epochs() == [EpochWasAborted(0)]


def test_an_abort_of_very_many_epochs_fits_the_wire(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    for time in range(1_500):
        writer.machine.appends.append("0", time, b"", 1, b"")
    wiring.run()
    wiring.publishers["0"].drain()
    wiring.run()
    writer.advance(1_500)
    assert len(reader.epochs()) == 1_500


# ---- opening: E5 ----


@pytest.mark.rule("E5")
def test_nothing_completes_before_the_declared_number_of_writers_has_come(wire_up):
    wiring = wire_up(min_writers=2)
    first = wiring.writer("w1")
    first.append("0", 0, b"a")
    first.advance(5)
    wiring.writer("w1", session=2).advance(6)  # the same id again does not count
    assert lower(wiring) == [0]
    second = wiring.writer("w2")
    assert second.of(SessionReady) == [SessionReady((0,))]
    second.advance(4)
    assert lower(wiring) == [4]
    second.leave(m.Leaving.CLOSE)
    assert lower(wiring) == [6]  # once per stream


@pytest.mark.rule("E5")
def test_a_writer_begins_at_the_time_that_all_segments_can_give(wire_up):
    wiring = wire_up(segments="012")
    holder = wiring.writer("holder")
    for segment, time in zip("012", (3, 5, 4), strict=True):
        wiring.publishers[segment].receive(holder.peers[segment], m.Hold(99, segment, (time,)), 0.0)
    late = wiring.writer("late")
    assert late.of(SessionReady) == [SessionReady((5,))]
    for segment in "012":
        assert list(wiring.publishers[segment]._writers.get("late").held) == [5]
    with pytest.raises(Exception, match="does not reach 4"):
        late.machine.appends.append("0", 4, b"", 1, b"")


@pytest.mark.rule("E5")
def test_the_joint_capability_in_a_partial_order(wire_up):
    wiring = wire_up("(int, int)", segments="01")
    holder = wiring.writer("holder")
    wiring.publishers["0"].receive(holder.peers["0"], m.Hold(99, "0", ((0, 3), (2, 0))), 0.0)
    wiring.publishers["1"].receive(holder.peers["1"], m.Hold(99, "1", ((1, 1),)), 0.0)
    assert wiring.writer("late").of(SessionReady) == [SessionReady(((1, 3), (2, 1)))]


@pytest.mark.rule("E5")
def test_a_segment_that_no_key_falls_into_never_holds_time_back(wire_up):
    wiring = wire_up(segments="012")
    writer, reader = wiring.writer(), wiring.reader()
    for time in range(3):
        writer.append("1", time, b"a")
        writer.advance(time + 1)
    assert [lower(wiring, segment) for segment in "012"] == [[3]] * 3
    assert reader.epochs() == [(time, [b"a"]) for time in range(3)]


# ---- sessions: E6 ----


@pytest.mark.rule("E6")
def test_the_newest_session_wins_and_the_older_is_notified(wire_up):
    wiring = wire_up()
    older = wiring.writer("w", session=1)
    older.append("0", 0, b"a")
    newer = wiring.writer("w", session=2)
    assert older.errors() == ["writer_fenced"]
    assert newer.machine.pending_epochs == (0,)
    assert newer.machine.number("0") == 0
    newer.append("0", 0, b"b")
    newer.advance(1)
    assert [event.payload for event in wiring.log["0"] if isinstance(event, m.Data)] == [b"a", b"b"]
    assert wiring.writer("w", session=1).errors() == ["writer_fenced"]
    assert newer.errors() == []


@pytest.mark.rule("E6")
def test_an_old_number_is_acknowledged_again_with_its_first_position():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    for number in range(3):
        publisher.receive(b"peer", append(number, number), 0.0)
    assert replies(publisher)[-1] == m.Ack("0", 2, 2, 3)
    publisher.receive(b"peer", append(1, 1), 0.0)
    assert replies(publisher) == [m.Ack("0", 1, 1, 1)]
    assert publisher.seq == 2


@pytest.mark.rule("E6")
def test_a_hole_in_the_numbers_is_refused():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", append(0, 0), 0.0)
    publisher.take()
    publisher.receive(b"peer", append(2, 0), 0.0)
    assert [type(reply) for reply in replies(publisher)] == [m.Lost]
    assert publisher.seq == 0


@pytest.mark.rule("E6")
def test_a_refusal_is_repeated_like_an_acknowledgement():
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.receive(b"peer", m.Hold(2, "0", (5,)), 0.0)
    publisher.receive(b"peer", append(0, 1), 0.0)
    first = replies(publisher)[-1]
    publisher.receive(b"peer", append(0, 1), 0.0)
    assert replies(publisher) == [first]


@pytest.mark.rule("E6")
def test_an_open_answers_with_what_the_writer_left_unfinished():
    publisher = fresh()
    publisher.receive(b"one", opening(), 0.0)
    for number, time in enumerate((0, 3, 3)):
        publisher.receive(b"one", append(number, time), 0.0)
    publisher.receive(b"one", m.Hold(2, "0", (1,)), 0.0)
    publisher.take()
    publisher.receive(b"two", opening(session=2), 0.0)
    (opened,) = replies(publisher, b"two")
    assert (opened.number, opened.held, opened.touched, opened.granted) == (2, (1,), (3,), False)


@pytest.mark.rule("E6", "E11")
def test_what_an_older_session_wrote_before_the_newer_returned_is_undone_and_its_numbers_are_forgotten(wire_up):
    wiring = wire_up()
    older = wiring.writer("w", session=1)
    older.cut()
    newer = wiring.writer("w", session=2)
    newer.cut()
    wiring.start_publisher("0", 2)
    older.connect()
    (stale,) = older.append("0", 3, b"stale")
    assert [told.ticket for told in older.of(Acked)] == [stale]
    newer.connect()
    assert older.errors() == ["writer_fenced"]
    newer.append("0", 4, b"a")
    newer.advance(5)
    incarnation = wiring.log["0"][-5:]
    assert [event.payload for event in incarnation if isinstance(event, m.Data)] == [b"stale", b"a"]
    assert [event.times for event in incarnation if isinstance(event, m.Aborted)] == [(3,)]
    assert (newer.errors(), lower(wiring)) == ([], [5])


@pytest.mark.rule("E6")
def test_a_session_that_was_given_up_cannot_come_back(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    writer = wiring.writer()
    writer.append("0", 0)
    writer.hold_back("0")
    wiring.tick(6)
    publisher = wiring.publishers["0"]
    publisher.receive(b"again", m.Open(1, "uid-of-the-stream", "0", "w", 1, None, None), wiring.now)
    assert replies(publisher, b"again")[-1].code == "writer_lost"


# ---- finishing: E7, S20 ----


@pytest.mark.rule("E7", "S20")
def test_a_stream_completes_at_all_segments_at_once_and_stays_readable(wire_up):
    wiring = wire_up(segments="01")
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 0, b"a")
    wiring.catalog_answers = False
    writer.leave(m.Leaving.FINISH)
    assert not writer.machine.over
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([0], [0])  # parked, until the catalog has recorded it
    assert not reader.machine.complete
    wiring.catalog_answers = True
    wiring.run()
    assert writer.machine.over
    assert (lower(wiring, "0"), lower(wiring, "1")) == ([], [])
    assert reader.epochs() == [(0, [b"a"])]
    assert reader.machine.complete
    late = wiring.reader(From.START)
    assert late.epochs() == [(0, [b"a"])]
    assert late.machine.complete
    assert wiring.writer("w", session=2).errors() == ["stream_complete"]


@pytest.mark.rule("E3", "E7")
def test_a_finish_of_a_writer_that_was_given_up_fails_though_the_stream_is_complete(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    writer, reader = wiring.writer(), wiring.reader()
    other = wiring.writer("other")
    writer.append("0", 0, b"a")
    writer.hold_back("0")
    writer.deaf.add("0")
    ticket = writer.leave(m.Leaving.FINISH)
    other.leave(m.Leaving.FINISH)
    wiring.tick(6)
    assert (wiring.publishers["0"].complete, reader.epochs()) == (True, [EpochWasAborted(0)])
    writer.cut("0")
    writer.connect("0")
    assert [(told.ticket, told.error.code) for told in writer.of(Failed)] == [(ticket, "writer_lost")]
    assert wiring.writer("w", session=2).errors() == ["stream_complete"]


@pytest.mark.rule("E7")
def test_an_open_before_completion_is_recorded_cancels_it(wire_up):
    wiring = wire_up(segments="01")
    writer = wiring.writer()
    wiring.catalog_answers = False
    writer.leave(m.Leaving.FINISH)
    later = wiring.writer("later", connect=False)
    later.connect("0")
    wiring.reports.reverse()  # segment 1's report is the last to come
    wiring.catalog_answers = True
    wiring.reports = type(wiring.reports)(sorted(wiring.reports, key=lambda item: (item[0], item[1].number)))
    wiring.run()
    later.connect("1")
    assert later.of(SessionReady) == [SessionReady((0,))]
    assert not any(publisher.complete for publisher in wiring.publishers.values())
    later.append("0", 0, b"a")
    later.leave(m.Leaving.FINISH)
    assert all(publisher.complete for publisher in wiring.publishers.values())


@pytest.mark.rule("E7")
def test_only_finishing_empties_the_frontier(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.advance(3)
    writer.leave(m.Leaving.CLOSE)
    assert lower(wiring) == [3]
    wiring.writer("other").leave(m.Leaving.FINISH)
    assert lower(wiring) == []


# ---- silence: E8 ----


@pytest.mark.rule("E8")
def test_a_publisher_that_was_not_reading_blames_no_writer(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    writer = wiring.writer()
    publisher = wiring.publishers["0"]
    publisher.tick(1.0)
    publisher.tick(60.0)  # its loop stood still for a minute
    for now in range(61, 65):
        publisher.tick(float(now))
    assert publisher.writers == ["w"]
    publisher.tick(65.0)
    assert publisher.writers == []
    wiring.run()
    assert writer.errors() == ["writer_lost"]


# ---- push after durable, what is told to whom: E9 ----


@pytest.mark.rule("E9")
def test_an_acknowledgement_never_comes_before_the_push(wire_up):
    publisher = fresh()
    publisher.receive(b"peer", opening(), 0.0)
    publisher.take()
    publisher.receive(b"peer", append(0, 0), 0.0)
    publisher.receive(b"peer", append(1, 0), 0.0)
    effects = publisher.take()
    assert [type(effect) for effect in effects] == [Push, Push, Reply]
    assert effects[-1].message == m.Ack("0", 1, 1, 2)


# ---- restart without a volume: E11, E12 ----


def crash(wiring, segment="0", *writers, lower=None, **options):
    """Kill the publisher of a segment and start its next life, as the catalog knows it."""
    old = wiring.publishers[segment]
    for writer in writers:
        writer.cut(segment)
    known = options.pop("known_writers", old.writers)
    start = tuple(old.progress.lower.frontier) if lower is None else lower
    return wiring.start_publisher(segment, old.incarnation + 1, lower=start, known_writers=known, **options)


@pytest.mark.rule("E11")
def test_the_next_life_begins_at_the_reported_frontier_and_takes_what_its_writers_say(wire_up):
    wiring = wire_up()
    writer, reader = wiring.writer(), wiring.reader()
    writer.append("0", 3, b"lost")
    writer.advance(3)
    publisher = crash(wiring, "0", writer, lower=(2,))
    assert lower(wiring) == [2]
    writer.connect("0")
    assert publisher.progress.state(3) is EpochState.ABORTED
    assert lower(wiring) == [3]
    with pytest.raises(Exception, match="epochs \\[3\\] are aborted"):
        writer.machine.raise_failure()
    reader.rejoin("0")
    writer.append("0", 4, b"kept")
    writer.advance(5)
    assert reader.epochs() == [EpochWasAborted(3), (4, [b"kept"])]


@pytest.mark.rule("E11")
def test_nothing_completes_before_the_known_writers_are_back(wire_up):
    wiring = wire_up(segments="01")
    first, second = wiring.writer("w1"), wiring.writer("w2")
    first.advance(4)
    second.advance(2)
    crash(wiring, "0", first, second)
    first.connect("0")
    first.advance(9)
    assert lower(wiring, "0") == [2]
    second.connect("0")
    second.advance(6)
    assert lower(wiring, "0") == [6]
    assert wiring.publishers["0"].writers == ["w1", "w2"]


@pytest.mark.rule("E11")
def test_a_known_writer_that_stays_away_times_out(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    first, second = wiring.writer("w1"), wiring.writer("w2")
    crash(wiring, "0", first, second)
    first.connect("0")
    first.advance(9)
    wiring.tick(4)
    assert lower(wiring) == [0]
    wiring.tick(3)
    assert lower(wiring) == [9]


@pytest.mark.rule("E11", "E6")
def test_what_was_not_acknowledged_before_the_crash_is_sent_again(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    writer.deaf.add("0")
    writer.append("0", 0, b"a", b"b")
    crash(wiring, "0", writer)
    writer.connect("0")
    assert [event.payload for event in wiring.publishers["0"].history.since(-1)] == [b"a", b"b"]
    assert len(writer.of(Acked)) == 2


@pytest.mark.rule("E12")
def test_a_writer_refuses_a_life_older_than_one_it_has_seen(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    old = wiring.publishers["0"]
    crash(wiring, "0", writer)
    writer.connect("0")
    assert writer.errors() == []
    writer.cut("0")
    wiring.publishers["0"] = old
    writer.connect("0")
    assert "stale" in writer.told[-1].reason
    writer.machine.appends.append("0", 0, b"", 1, b"")
    assert writer.machine.take() == []


# ---- retention and limits: S21, E13 ----


@pytest.mark.rule("S21")
def test_without_subscribers_and_history_nothing_is_kept(wire_up):
    wiring = wire_up(retention_bytes=0)
    writer = wiring.writer()
    writer.append("0", 0, b"x" * 1000)
    assert wiring.servers["0"].subscriptions == {}  # the shell pushes, and so encodes, only if there are any
    assert wiring.publishers["0"].history.bytes == 0
    assert writer.of(Acked)[0].position == m.Position(1, 0)


@pytest.mark.rule("E13")
def test_an_epoch_larger_than_the_retention_is_refused_not_half_dropped(wire_up):
    wiring = wire_up(retention_bytes=5_000)
    writer = wiring.writer()
    writer.append("0", 0, b"x" * 3_000)
    writer.append("0", 0, b"x" * 3_000)
    assert writer.errors() == ["epoch_too_large"]
    assert wiring.publishers["0"].history.truncated_at == m.NOTHING_YET


@pytest.mark.rule("E13")
def test_an_epoch_of_very_many_small_batches_is_refused_as_well(wire_up):
    wiring = wire_up(retention_bytes=5_000)
    writer = wiring.writer()
    writer.append("0", 0, *[b"x"] * 50)
    assert "epoch_too_large" in writer.errors()
    assert wiring.publishers["0"].history.truncated_at == m.NOTHING_YET


@pytest.mark.rule("E13")
def test_long_topics_count_as_what_is_in_the_payload_does(wire_up):
    wiring = wire_up(retention_bytes=5_000)
    writer = wiring.writer()
    for _ in range(5):
        writer.machine.appends.append("0", 0, b"t" * 1_000, 1, b"")
        wiring.run()
    assert writer.errors() == ["epoch_too_large"]
    assert wiring.publishers["0"].history.bytes == 4 * 1_200


def test_a_payload_above_the_limit_is_refused(wire_up):
    wiring = wire_up(max_payload=100)
    writer = wiring.writer()
    writer.append("0", 0, b"x" * 101)
    assert writer.errors() == ["payload_too_large"]


def test_every_writer_is_notified_of_a_deleted_stream(wire_up):
    wiring = wire_up()
    writer = wiring.writer()
    wiring.publishers["0"].deleted()
    wiring.run()
    assert writer.of(Reconnect), "it looks up again: only the catalog says that a stream is gone"
    publisher = wiring.publishers["0"]
    publisher.receive(b"p", m.Open(1, "another uid", "0", "w", 1, None, None), 0.0)
    assert replies(publisher, b"p")[-1].code == "stream_gone"


# ---- several writers, several segments: S25 ----


@pytest.mark.rule("S25")
def test_workers_as_writers_over_segments_of_their_own(wire_up):
    wiring = wire_up(segments="012", min_writers=3)
    reader = wiring.reader()
    workers = [wiring.writer(f"worker/{n}") for n in range(3)]
    for n, worker in enumerate(workers):
        for time in range(4):
            worker.append(str(n), time, b"%d" % n)
            worker.advance(time + 1)
        assert reader.epochs() == ([] if n < 2 else [(time, [b"0", b"1", b"2"]) for time in range(4)])


@pytest.mark.rule("S25")
def test_workers_that_merge_into_one_segment(wire_up):
    wiring = wire_up(segments="0", min_writers=3)
    reader = wiring.reader()
    workers = [wiring.writer(f"worker/{n}") for n in range(3)]
    for n, worker in enumerate(workers):
        worker.append("0", 0, b"%d" % n)
        worker.leave(m.Leaving.FINISH)
    assert reader.epochs() == [(0, [b"0", b"1", b"2"])]
    assert reader.machine.complete


# ---- a writer under another's capability ----


def test_a_writer_under_another_appends_with_its_capability_and_its_loss_aborts_nothing(wire_up):
    wiring = wire_up(writer_timeout=5.0)
    driver, reader = wiring.writer("driver"), wiring.reader()
    task = wiring.writer("driver/0", under="driver")
    task.append("0", 0, b"a")
    assert task.of(Moved) == []
    assert wiring.publishers["0"].writers == ["driver"]
    wiring.writers.remove(task)
    wiring.tick(7)
    driver.advance(1)
    assert reader.epochs() == [(0, [b"a"])]
    late = wiring.writer("driver/1", under="driver")
    late.append("0", 0, b"b")
    assert late.errors() == ["capability"]
    driver.leave(m.Leaving.CLOSE)
    late.append("0", 1, b"c")
    assert late.errors() == ["capability", "capability"]
    assert late.of(Over) == []


def test_times_under_way_stay_within_what_a_snapshot_can_say() -> None:
    shape = TimeShape.parse("(int, int)")
    publisher = recorded_publisher(shape)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    most = shape.most_times(STATE_BYTES)
    for number in range(most + 1):
        time = (MAX_TIME - most + number, MAX_TIME - number)
        publisher.receive(b"w", m.Append("0", number, time, b"", 1, 0, b""), 0.0)
    replies = [effect.message for effect in publisher.take() if isinstance(effect, Reply)]
    assert isinstance(replies[-1], m.AppendRefused)
    assert replies[-1].code == "too_many_epochs"
    state = publisher.state()
    snapshot = m.Snapshot(state.seq, 1, bytes(16), state.lower, state.upper, state.aborted)
    assert len(wire.encode(snapshot)) == 1, "it fits a header"
    publisher.receive(b"w", m.Hold(2, "0", tuple((n, most - n) for n in range(most + 1))), 0.0)
    refused = [effect.message for effect in publisher.take() if isinstance(effect, Reply)]
    assert [message.code for message in refused if isinstance(message, m.Refused)] == ["too_many_epochs"]


@pytest.mark.rule("E7", "E47")
@pytest.mark.parametrize("leaves", ["finishes", "is lost"])
def test_a_writer_that_a_restored_catalog_did_not_know_leaves_nothing_held_in_a_complete_stream(leaves: str) -> None:
    settings = PublisherSettings(TimeShape.parse("int"), writer_timeout=4.0)
    publisher = SegmentPublisher("uid", "0", settings, incarnation=1, now=0.0)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    publisher.completed()  # an older copy of the catalog was put back, in which the writer had not opened again
    assert list(publisher.state().lower) == [0], "it may still end its epoch"
    if leaves == "finishes":
        publisher.receive(b"w", m.Leave(2, "0", m.Leaving.FINISH), 1.0)
    else:
        for now in range(1, 6):
            publisher.tick(float(now))
    assert list(publisher.state().lower) == []
    assert not any(isinstance(effect, ReportFinishing) for effect in publisher.take())


@pytest.mark.rule("E7")
def test_a_finish_is_confirmed_once_the_catalog_knows_of_it() -> None:
    publisher = SegmentPublisher("uid", "0", PublisherSettings(TimeShape.parse("int")), incarnation=1, now=0.0)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    publisher.receive(b"w", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    effects = publisher.take()
    assert ReportFinishing(1, True) in effects
    assert AskRecord() in effects, "that somebody has finished is recorded too (E47)"
    record = publisher.record()
    assert record is not None
    publisher.recorded(record.number, 0.0)
    assert Reply(b"w", m.Done(2, "0")) not in (*effects, *publisher.take())
    publisher.receive(b"w", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    assert Reply(b"w", m.Done(2, "0")) not in publisher.take(), "nor when it is asked again"
    publisher.finishing_answered(1, False, 0.0)
    assert Reply(b"w", m.Done(2, "0")) in publisher.take()


@pytest.mark.rule("E4", "E7")
@pytest.mark.parametrize("then", ["opens no more", "opens again"])
def test_an_open_that_is_withdrawn_while_it_waits_for_the_catalog_holds_nothing_back(then: str) -> None:
    publisher = SegmentPublisher("uid", "0", PublisherSettings(TimeShape.parse("int")), incarnation=1, now=0.0)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    publisher.receive(b"w", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    publisher.receive(b"x", m.Open(1, "uid", "0", "x", 1, None, None), 0.0)
    publisher.receive(b"x", m.Leave(2, "0", m.Leaving.ABORT), 0.0)
    if then == "opens again":
        publisher.receive(b"x", m.Open(3, "uid", "0", "x", 2, None, None), 0.0)
    publisher.take()
    publisher.finishing_answered(2, False, 1.0)
    effects = publisher.take()
    if then == "opens no more":
        assert publisher.writers == []
        assert Reply(b"x", m.Done(2, "0")) in effects
        assert ReportFinishing(3, True) in effects, "the finish before it stands (E47)"
    else:
        assert publisher.writers == ["x"]


@pytest.mark.rule("E4", "E7")
def test_an_open_that_is_withdrawn_while_it_waits_and_is_refused_is_forgotten() -> None:
    publisher = SegmentPublisher("uid", "0", PublisherSettings(TimeShape.parse("int")), incarnation=1, now=0.0)
    publisher.receive(b"w", m.Open(1, "uid", "0", "w", 1, None, None), 0.0)
    publisher.receive(b"w", m.Leave(2, "0", m.Leaving.FINISH), 0.0)
    publisher.receive(b"x", m.Open(1, "uid", "0", "x", 1, None, None), 0.0)
    publisher.receive(b"x", m.Leave(2, "0", m.Leaving.ABORT), 0.0)
    publisher.take()
    publisher.finishing_answered(2, True, 1.0)
    answers = [effect.message for effect in publisher.take() if isinstance(effect, Reply) and effect.peer == b"x"]
    assert [type(answer) for answer in answers] == [m.Refused]


# ---- what holds time back ----


def holders(wiring, segment="0"):
    found = wiring.publishers[segment].holders(wiring.now)
    return [(holder.time, holder.kind, holder.writer, round(holder.seconds, 1)) for holder in found]


def test_the_publisher_says_which_writer_holds_time_back_and_since_when(wire_up):
    wiring = wire_up(min_writers=2)
    assert holders(wiring) == [(0, "opening", None, 0)]
    slow = wiring.writer("slow")
    wiring.tick(2)
    assert holders(wiring) == [(0, "opening", None, 2), (0, "writer", "slow", 2)]
    fast = wiring.writer("fast")
    assert holders(wiring) == [(0, "writer", "slow", 2), (0, "writer", "fast", 0)]
    fast.advance(7)
    wiring.tick(3)
    assert holders(wiring) == [(0, "writer", "slow", 5)]
    slow.advance(5)
    wiring.tick(1)
    assert holders(wiring) == [(5, "writer", "slow", 1)]
    slow.leave(m.Leaving.CLOSE)
    assert holders(wiring) == [(7, "writer", "fast", 4)]
    fast.leave(m.Leaving.CLOSE)
    wiring.tick(2)
    assert holders(wiring) == [(7, "parked", None, 2)]


def test_a_writer_that_holds_several_times_is_named_for_each_since_it_took_it(wire_up):
    wiring = wire_up("(int, int)")
    writer = wiring.writer()
    for time in ((0, 3), (2, 0)):
        writer.machine.hold(time)
    writer.machine.release((0, 0))
    wiring.run()
    wiring.tick(2)
    assert holders(wiring) == [((0, 3), "writer", "w", 2), ((2, 0), "writer", "w", 2)]
    writer.machine.hold((2, 1))
    writer.machine.release((2, 0))
    wiring.run()
    wiring.tick(1)
    assert holders(wiring) == [((0, 3), "writer", "w", 3), ((2, 1), "writer", "w", 1)]


def test_who_has_finished_and_who_is_awaited_is_reported(wire_up):
    wiring = wire_up(segments="01")
    wiring.catalog_answers = False
    wiring.writer().leave(m.Leaving.FINISH)
    assert [kind for _, kind, _, _ in holders(wiring)] == ["finishing"]
    wiring.start_publisher("0", 2, known_writers=["a", "b"])
    assert holders(wiring) == [(0, "returning", "a", 0), (0, "returning", "b", 0)]


def test_no_one_holds_a_complete_stream():
    publisher = SegmentPublisher("uid", "0", PublisherSettings(INT), incarnation=1, now=0.0, complete=True)
    assert publisher.holders(5.0) == []
