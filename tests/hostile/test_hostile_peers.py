"""What one segment's machines do with writers and subscribers that want too much: the others never pay for it."""

import time as clock
from typing import Any

import google_crc32c
import pytest
from tests.protocol.recorded import recorded_publisher

from epochal.errors import LimitExceeded, LocalProtocolError, from_code
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher import limits
from epochal.protocol.publisher.channels import Channels
from epochal.protocol.publisher.effects import PublisherEffect, Reply, SendAnswers
from epochal.protocol.publisher.limits import PublisherSettings
from epochal.protocol.publisher.machine import SegmentPublisher
from epochal.protocol.publisher.server import SegmentServer, ServingSettings
from epochal.protocol.times import TimeShape

INT, PAIR = TimeShape(), TimeShape.parse("(int, int)")


def publisher(shape: TimeShape = INT, **settings: Any) -> SegmentPublisher:
    return recorded_publisher(shape, **settings)


def said(segment: SegmentPublisher, peer: bytes, *messages: m.Message) -> list[Any]:
    """What the peer is answered, as it would read it."""
    for message in messages:
        segment.receive(peer, message, 0.0)
    replies = [effect.message for effect in segment.take() if isinstance(effect, Reply) and effect.peer == peer]
    return [message for frames in wire.encode(*replies) for message in wire.decode(frames)]


def opening(writer: str, resume: m.Resume | None = None) -> m.Open:
    return m.Open(1, "uid", "0", writer, 1, None, resume)


def append(number: int, time: Any, payload: bytes = b"") -> m.Append:
    return m.Append("0", number, time, b"", 1, google_crc32c.value(payload), payload)


def test_a_time_that_is_huge_to_spell_makes_no_answer_that_cannot_be_sent():
    """It was quoted in full: the answer did not fit a header, and every other answer of that moment was lost."""
    segment = publisher()
    said(segment, b"p", opening("w"))
    monstrous = ((0,) * 8192,) * 7
    (refused,) = said(segment, b"p", append(0, monstrous))
    assert (refused.code, len(refused.detail) < 1000) == ("time_shape", True)
    (refused,) = said(segment, b"q", opening("v", m.Resume(-1, (monstrous,), ())))
    assert refused.code == "time_shape"


def test_reasons_that_are_remembered_are_short():
    segment = publisher(PAIR)
    said(segment, b"p", opening("w"))
    held = tuple((i + 10**15, 680 - i + 10**15) for i in range(600))
    (done,) = said(segment, b"p", m.Hold(2, "0", held))
    assert isinstance(done, m.Done)
    (refused,) = said(segment, b"p", append(0, (0, 0)))
    assert refused.code == "capability"
    assert len(refused.detail) <= limits.MAX_DETAIL


@pytest.mark.parametrize("writer", ["", "w" * 254, "\N{SNOWMAN}" * 4096])
def test_a_writer_whose_id_the_catalog_would_not_take_is_refused(writer):
    """It would have been reported with every renewal, every renewal refused, and the lease lost."""
    segment = publisher()
    (refused,) = said(segment, b"p", opening(writer))
    assert refused.code == "limit_exceeded"
    assert segment.writers == []


def test_writers_are_bounded_and_room_is_made_by_those_that_leave(monkeypatch):
    monkeypatch.setattr("epochal.protocol.publisher.session_opening.MAX_WRITERS", 5)
    segment = publisher()
    for number in range(5):
        assert isinstance(said(segment, b"p%d" % number, opening(f"w{number}"))[0], m.Opened)
    (refused,) = said(segment, b"q", opening("one more"))
    assert from_code(refused.code, "").retryable
    assert isinstance(said(segment, b"p0", opening("w0"))[0], m.Opened), "who is known may come back"
    said(segment, b"p1", m.Leave(2, "0", m.Leaving.CLOSE))
    assert isinstance(said(segment, b"q", opening("one more"))[0], m.Opened)


@pytest.mark.clock
@pytest.mark.parametrize("field", ["held", "touched"])
def test_a_returning_writer_cannot_claim_more_times_than_a_segment_keeps(field):
    """8,192 incomparable times in one open cost seconds, and then no snapshot fitted a message any more."""
    segment = publisher(PAIR)
    many = tuple((i, 8191 - i) for i in range(8192))
    resume = m.Resume(-1, many, ()) if field == "held" else m.Resume(-1, ((0, 0),), many)
    started = clock.process_time()
    (refused,) = said(segment, b"p", opening("w", resume))
    assert refused.code == "too_many_epochs"
    assert clock.process_time() - started < 2.0
    state = segment.state()
    wire.encode(m.Snapshot(state.seq, 1, b"n" * 16, state.lower, state.upper, state.aborted))


def test_a_peer_without_a_session_is_refused_once_however_much_it_sends():
    segment = publisher()
    answers = said(segment, b"p", *[m.Alive("0")] * 1000, *[append(n, 0) for n in range(1000)])
    assert [type(answer) for answer in answers] == [m.Lost]
    assert [type(answer) for answer in said(segment, b"p", m.Alive("0"))] == [m.Lost], "and again the next time"


def test_opens_that_wait_for_the_catalog_are_bounded(monkeypatch):
    monkeypatch.setattr("epochal.protocol.publisher.session_opening.MAX_WAITING_OPENS", 3)
    segment = SegmentPublisher("uid", "0", PublisherSettings(INT), incarnation=2, now=0.0, lower=[3], finishing=True)
    for number in range(3):
        assert said(segment, b"p", opening(f"w{number}")) == []
    (refused,) = said(segment, b"p", opening("w3"))
    assert from_code(refused.code, "").retryable


# ---- subscribers ----


def server(**settings: Any) -> SegmentServer:
    return SegmentServer(publisher(), Channels(lambda: b"channel0"), ServingSettings(**settings), 0.0)


def _take(machine: SegmentServer) -> list[PublisherEffect]:
    segment = machine.publisher
    assert isinstance(segment, SegmentPublisher)
    return segment.take()


def asked(machine: SegmentServer, peer: bytes, message: m.Message) -> Any:
    machine.receive(peer, message, 0.0)
    (answer,) = [effect for effect in _take(machine) if isinstance(effect, SendAnswers)]
    return answer.messages[0]


def hello(number: int) -> m.Hello:
    return m.Hello(number, (1,), "uid", "0", number.to_bytes(16, "big"))


@pytest.mark.rule("S24")
def test_one_peer_cannot_use_up_the_joins_of_all():
    machine = server(max_pending=1000, max_pending_each=3)
    kinds = [type(asked(machine, b"greedy", hello(number))) for number in range(5)]
    assert kinds == [m.Welcome] * 3 + [m.Refused] * 2
    assert isinstance(asked(machine, b"another", hello(9)), m.Welcome)
    machine.subscribed((0).to_bytes(16, "big"), 0.0)
    _take(machine)
    assert isinstance(asked(machine, b"greedy", hello(10)), m.Welcome), "a join that went on makes room"
    machine.tick(60.0)
    _take(machine)
    assert isinstance(asked(machine, b"greedy", hello(11)), m.Welcome), "so does one that expired"
    assert not machine._joining.keys() - {b"greedy"}


@pytest.mark.rule("S24")
def test_one_peer_cannot_use_up_the_answers_of_all():
    machine = server(max_answers=1000, max_answers_each=2)
    assert isinstance(machine.publisher, SegmentPublisher)
    said(machine.publisher, b"w", opening("w"), append(0, 0), append(1, 0))
    kinds = [type(asked(machine, b"greedy", m.Since(number, "0", None, 0))) for number in range(4)]
    assert kinds == [m.Opening] * 2 + [m.Refused] * 2
    assert isinstance(asked(machine, b"another", m.Since(1, "0", None, 0)), m.Opening)


def test_a_full_publisher_is_worth_another_try():
    """It was `limit_exceeded`, which ended honest subscriptions for good while somebody flooded the publisher."""
    machine = server(max_pending=1, max_answers=1)
    asked(machine, b"p", hello(1))
    assert isinstance(machine.publisher, SegmentPublisher)
    said(machine.publisher, b"w", opening("w"), append(0, 0))
    _take(machine)
    machine.receive(b"p", m.Since(1, "0", None, 0), 0.0)
    _take(machine)
    for message in (hello(2), m.Since(2, "0", None, 0)):
        refused = asked(machine, b"another", message)
        assert from_code(refused.code, "").retryable


# ---- frames ----


def test_a_frame_with_more_than_anybody_packs_is_refused_before_it_is_read():
    (frames,) = wire.encode(*[m.Alive("0")] * 5000)
    assert sum(1 for _ in wire.decode(frames)) == 5000
    with pytest.raises(LimitExceeded, match="first frame"):
        next(iter(wire.decode([frames[0] * 8])))
    with pytest.raises(LimitExceeded, match="more messages"):
        list(wire.decode(frames, max_messages=16))


def test_the_largest_single_message_fits_the_frame():
    payload = b"x" * (wire.APART_BYTES - 1)
    big = m.Aborted(1, 0, tuple(range(2**32, 2**32 + 7000)))
    for message in (big, m.Data(1, 0, 0, b"t" * wire.MAX_TOPIC, 1, 0, payload)):
        (frames,) = wire.encode(message, prefix=b"P" * 17)
        assert len(frames[0]) < wire.MAX_FIRST_FRAME
        assert list(wire.decode(frames, prefix=17)) == [message]


@pytest.mark.parametrize(
    "message",
    [m.Refused(1, "x", "d" * 10_000), m.Lost("0", "x", "\ud800"), m.AppendRefused("0", 1, "x", "\N{SNOWMAN}" * 5000)],
)
def test_a_reason_is_cut_to_what_a_reader_takes(message):
    (frames,) = wire.encode(message)
    (read,) = wire.decode(frames)
    assert read[:-1] == message[:-1]


@pytest.mark.parametrize("message", [m.Since(2**65, "0", None, 1), m.Hello(1, (1,), "\ud800", "0", b"n" * 16)])
def test_what_cannot_be_written_is_a_typed_error(message):
    with pytest.raises(LocalProtocolError):
        wire.encode(message)
