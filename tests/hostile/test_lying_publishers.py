"""What a follower and a subscriber do with a publisher that lies: one typed error, and nothing of it is believed.

The machines are driven directly: everything here has passed the decoder, so its types are right and only its meaning
is wrong.
"""

import itertools
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import EpochalError, RemoteProtocolError
from epochal.protocol import messages as m
from epochal.protocol.subscriber.effects import Began, Broke, EpochBatches, Reached, Rejoined, Request
from epochal.protocol.subscriber.follower import Follower
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.since import From
from epochal.protocol.times import MAX_TIME, TimeShape
from epochal.protocol.topics.filter import TopicFilter

INT = TimeShape()
PAIR = TimeShape.parse("(int, int)")
CHANNEL = b"channel0"
OF_ANOTHER_SHAPE = [(), (0,), (0, 0), (0, (0, 0)), ((),)]


def data(seq: int, time: Any = 0, prev: int | None = None, payload: bytes = b"x", topic: bytes = b"") -> m.Data:
    return m.Data(seq, seq - 1 if prev is None else prev, time, topic, 1, google_crc32c.value(payload), payload)


class Reader:
    """A follower and the subscriber that it feeds; the test plays the publisher."""

    def __init__(
        self,
        begin: From | m.Position = From.LIVE,
        shape: TimeShape = INT,
        topics: TopicFilter | None = None,
        **options: Any,
    ) -> None:
        numbers = itertools.count(1)
        self.follower = Follower(
            "uid", "0", begin, shape=shape, fresh_nonce=lambda: next(numbers).to_bytes(16, "big"), now=0.0,
            topics=topics, **options,
        )  # fmt: skip
        self.subscriber = SubscriberMachine("uid", shape, ["0"], topics=topics)
        self.errors: list[EpochalError] = []
        self.nonce = b""

    def sent(self) -> Any:
        (message,) = [effect.message for effect in self.follower.take() if isinstance(effect, Request)]
        return message

    def answer(self, *messages: m.Message) -> None:
        for message in messages:
            self.follower.answered(message, 0.0)
        self._feed()

    def push(self, *messages: m.Message, private: bool = False) -> None:
        for message in messages:
            self.follower.pushed(b"P" + self.nonce if private else b"C" + CHANNEL, message, 0.0)
        self._feed()

    def _feed(self) -> None:
        try:
            for told in self.follower.reports():
                if isinstance(told, Began):
                    self.subscriber.began("0", told)
                elif isinstance(told, Broke):
                    self.errors.append(told.error)
                elif isinstance(told, Reached):
                    self.subscriber.reached("0", told.seq)
                elif isinstance(told, Rejoined):
                    self.subscriber.rejoined("0", told)
                else:
                    self.subscriber.event("0", told)
        except EpochalError as error:
            self.errors.append(error)

    def welcome(self, features: tuple[str, ...] = ()) -> None:
        hello = self.sent()
        self.nonce = hello.nonce
        self.answer(m.Welcome(hello.request, 1, CHANNEL, 1, -1, 1000, 1.0, features))

    def snapshot(self, lower: Any = (0,), upper: Any = (), aborted: Any = (), seq: int = 4) -> None:
        self.push(m.Snapshot(seq, 1, self.nonce, tuple(lower), tuple(upper), tuple(aborted)), private=True)

    def join(self, **state: Any) -> None:
        self.welcome()
        self.snapshot(**state)

    def pull(self, seq: int = 4) -> int:
        """Join behind event `seq` and ask for history; returns the number of the request."""
        self.join(seq=seq)
        ask = self.sent()
        assert isinstance(ask, m.Since)
        return ask.request

    def refused(self) -> bool:
        """Whether exactly one error came of it, typed as the peer's fault."""
        (error,) = self.errors
        return isinstance(error, RemoteProtocolError)


@pytest.mark.parametrize("time", OF_ANOTHER_SHAPE)
@pytest.mark.parametrize("field", ["lower", "upper", "aborted"])
def test_a_snapshot_with_times_of_another_shape_is_refused(field, time):
    reader = Reader()
    reader.join(**{field: (time,)})
    assert reader.refused()
    assert not reader.subscriber.ready


@pytest.mark.parametrize("time", OF_ANOTHER_SHAPE)
@pytest.mark.parametrize(
    "event",
    [lambda time: data(5, time), lambda time: m.Frontier(5, 4, ((time, 1),)), lambda time: m.Aborted(5, 4, (time,))],
    ids=["data", "frontier", "aborted"],
)
def test_an_event_with_a_time_of_another_shape_is_refused(event, time):
    for reader in (Reader(), Reader(From.START)):
        if reader.follower._progress.begin is From.LIVE:
            reader.join()
            reader.push(event(time))
        else:
            request = reader.pull(5)
            reader.answer(m.Opening(request, m.Position(1, 4), (0,), (), ()), m.Chunk(request, 1, True), event(time))
        assert reader.refused()


@pytest.mark.parametrize("at", range(3))
def test_an_opening_with_times_of_another_shape_is_refused(at):
    reader = Reader(From.START)
    request = reader.pull()
    times: list[Any] = [(0,), (), ()]
    times[at] = ((1, 1),)
    reader.answer(m.Opening(request, m.Position(1, -1), *times))
    assert reader.refused()


def test_a_truncation_with_times_of_another_shape_is_refused():
    reader = Reader(m.Position(1, 0))
    reader.answer(m.Truncated(reader.pull(), m.Position(1, 3), ((1, 1),)))
    assert reader.refused()


@pytest.mark.parametrize(("seq", "prev"), [(5, 5), (5, 6), (5, MAX_TIME), (-1, -1), (0, 0)])
def test_an_event_that_does_not_follow_one_before_it_is_refused(seq, prev):
    reader = Reader()
    reader.join()
    reader.push(data(seq, prev=prev))
    assert reader.refused()


def test_history_of_another_incarnation_than_welcomed_is_refused():
    reader = Reader(From.START)
    reader.answer(m.Opening(reader.pull(), m.Position(9, -1), (0,), (), ()))
    assert reader.refused()


@pytest.mark.parametrize(
    "answers",
    [
        lambda r: [m.Chunk(r, 1, False)],
        lambda r: [m.Opening(r, m.Position(1, -1), (0,), (), ()), data(0)],
        lambda r: [m.Opening(r, m.Position(1, -1), (0,), (), ()), m.Chunk(r, 1, False), data(0), data(1)],
        lambda r: [m.Opening(r, m.Position(1, -1), (0,), (), ()), m.Chunk(r, 2, False), data(0), m.Chunk(r, 1, True)],
        lambda r: [m.Opening(r, m.Position(1, -1), (0,), (), ())] * 2,
    ],
    ids=["no opening", "no chunk", "more than announced", "less than announced", "two openings"],
)
def test_an_answer_that_does_not_hold_what_it_announced_is_refused(answers):
    reader = Reader(From.START)
    request = reader.pull()
    reader.answer(*answers(request))
    assert reader.refused()


@pytest.mark.rule("F7")
@pytest.mark.parametrize(
    ("event", "refused"),
    [(data(5), True), (data(6, prev=4), True), (data(7, prev=5), True), (data(7, prev=4), False)],
    ids=["within", "the last", "another one within is missing", "after"],
)
def test_an_event_on_a_channel_that_a_heartbeat_had_denied_is_refused(event, refused):
    reader = Reader()
    reader.join(seq=4)
    reader.push(m.Heartbeat(4, 5), m.Heartbeat(4, 6), event, m.Frontier(9, event.seq, ((0, -1), (2, 1))))
    if refused:
        assert reader.refused()
        assert reader.subscriber.next_epoch() is None
    else:
        assert not reader.errors


@pytest.mark.rule("F11")
@pytest.mark.parametrize("joined", [False, True])
def test_a_refusal_counts_while_joining_only(joined):
    """Later it answers a stranger, who has subscribed to an id that it saw."""
    reader = Reader()
    reader.welcome()
    if joined:
        reader.snapshot()
    reader.push(m.Refused(0, "remote_protocol", "this subscription id is unknown"), private=True)
    assert not reader.errors if joined else reader.refused()


class Filtered(Reader):
    """Reads topic `a` from the start, from a publisher that filters its history; `request` asks for it."""

    def __init__(self) -> None:
        super().__init__(From.START, topics=TopicFilter([b"a"]))
        self.welcome((m.SINCE_FILTER,))
        self.snapshot(seq=6)
        self.request = self.sent().request
        self.answer(m.Opening(self.request, m.Position(1, -1), (0,), (), ()))


@pytest.mark.rule("F10")
@pytest.mark.parametrize("seq", [5, 8, 10])
def test_a_filtered_answer_that_goes_back_is_refused(seq):
    reader = Filtered()
    reader.answer(m.Chunk(reader.request, 1, False, 10), data(5, topic=b"a"))
    assert not reader.errors
    reader.answer(m.Chunk(reader.request, 1, True, 12), data(seq, topic=b"a"))
    assert reader.refused()


@pytest.mark.rule("F10", "F12")
@pytest.mark.parametrize(
    ("event", "refused"),
    [(data(8, topic=b"a"), True), (m.Frontier(8, 7, ()), True), (data(8, topic=b"b"), False)],
    ids=["of a wanted topic", "a frontier", "unwanted, on a channel that carries more"],
)
def test_an_event_that_a_filtered_answer_has_passed_over_is_refused_if_it_was_due(event, refused):
    reader = Filtered()
    reader.answer(m.Chunk(reader.request, 1, True, 10), data(5, topic=b"a"))
    reader.push(data(5, topic=b"a"), event)
    assert reader.refused() if refused else not reader.errors


@pytest.mark.rule("S33")
def test_a_frontier_that_goes_back_is_refused_and_nothing_is_yielded_twice():
    reader = Reader()
    reader.join()
    reader.push(data(5, 1), m.Frontier(6, 5, ((0, -1), (2, 1))))
    first = reader.subscriber.next_epoch()
    assert isinstance(first, EpochBatches)
    reader.push(m.Frontier(7, 6, ((0, 1),)), data(8, 1), m.Frontier(9, 8, ((0, -1),)))
    assert any(isinstance(error, RemoteProtocolError) for error in reader.errors)
    assert reader.subscriber.next_epoch() is None


def test_a_damaged_payload_is_counted_pulled_again_and_never_yielded():
    reader = Reader()
    reader.join()
    reader.follower.take()
    reader.push(data(5, 1)._replace(payload=b"y"), data(6, 1))
    assert reader.follower.damaged == 1
    reader.welcome()
    reader.snapshot(seq=6)
    request = reader.sent().request
    reader.answer(
        m.Opening(request, m.Position(1, 4), (0,), (0,), ()), m.Chunk(request, 2, True), data(5, 1), data(6, 1)
    )
    reader.push(m.Frontier(7, 6, ((0, -1), (2, 1))))
    epoch = reader.subscriber.next_epoch()
    assert isinstance(epoch, EpochBatches)
    assert [batch.payload for _, batch in epoch.batches] == [b"x", b"x"]
    assert not reader.errors


# ---- any sequence of well-typed messages ----

NUMBERS = st.sampled_from([-1, 0, 1, 2, 4, 5, 6, 7, MAX_TIME])
TIMES = st.recursive(
    st.sampled_from([0, 1, 2, MAX_TIME]), lambda part: st.lists(part, max_size=2).map(tuple), max_leaves=3
)
MANY = st.lists(TIMES, max_size=3).map(tuple)
COUNTS = st.sampled_from([0, 1, 2, 2**32 - 1])
TEXTS = st.sampled_from(["", "history_truncated", "stream_gone", "no_publisher", "no such code"])
POSITIONS = st.builds(m.Position, NUMBERS, NUMBERS)
PAYLOADS = st.sampled_from([b"", b"x"])
CHANGES = st.lists(st.tuples(TIMES, st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])), max_size=3).map(tuple)

TOPICS = st.sampled_from([b"", b"a", b"b"])
FEATURES = st.sampled_from([(), (m.FILTER_CHANNELS, m.SINCE_FILTER)])
NONCES = st.sampled_from([b"\0" * 15 + b"\1", b"\0" * 15 + b"\2"])
FILTERS = st.sampled_from([None, TopicFilter([b"a"]), TopicFilter(None, [b"b"])])

EVENTS = st.one_of(
    st.builds(
        lambda seq, prev, time, topic, payload, lie: m.Data(
            seq, prev, time, topic, 1, google_crc32c.value(payload) ^ lie, payload
        ),
        NUMBERS, NUMBERS, TIMES, TOPICS, PAYLOADS, st.sampled_from([0, 0, 0, 1]),
    ),
    st.builds(m.Frontier, NUMBERS, NUMBERS, CHANGES),
    st.builds(m.Aborted, NUMBERS, NUMBERS, MANY),
)  # fmt: skip
ANSWERS = st.one_of(
    EVENTS,
    st.builds(
        m.Welcome,
        NUMBERS,
        st.just(1),
        st.just(CHANNEL),
        NUMBERS,
        NUMBERS,
        COUNTS,
        st.just(1.0),
        FEATURES,
        st.booleans(),
    ),
    st.builds(m.Opening, NUMBERS, POSITIONS, MANY, MANY, MANY, MANY, NUMBERS, MANY),
    st.builds(m.Chunk, NUMBERS, COUNTS, st.booleans(), NUMBERS),
    st.builds(m.Confirm, NUMBERS, NUMBERS, st.integers(1, 3), TOPICS),
    st.builds(m.Truncated, NUMBERS, POSITIONS, MANY),
    st.builds(m.Refused, NUMBERS, TEXTS, TEXTS),
)
PUSHES = st.one_of(
    EVENTS,
    st.builds(m.Heartbeat, NUMBERS, NUMBERS),
    st.builds(m.Refused, NUMBERS, TEXTS, TEXTS),
    st.builds(m.Snapshot, NUMBERS, NUMBERS, NONCES, MANY, MANY, MANY, MANY, st.none() | NUMBERS),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), ANSWERS),
        st.tuples(st.just("push"), PUSHES),
        st.tuples(st.just("private"), PUSHES),
        st.tuples(st.just("want"), FILTERS),
    ),
    max_size=12,
)


@given(
    shape=st.sampled_from([INT, PAIR]),
    begin=st.sampled_from([From.LIVE, From.START, m.Position(1, 2)]),
    continuing=st.booleans(),
    joins=st.booleans(),
    topics=FILTERS,
    whole=st.booleans(),
    steps=STEPS,
)
def test_whatever_a_publisher_says_only_typed_errors_come_of_it(shape, begin, continuing, joins, topics, whole, steps):
    continuing = continuing and isinstance(begin, m.Position)
    reader = Reader(begin, shape, topics, continuing=continuing, whole_filter=whole)
    if joins:
        bottom = shape.bottom
        reader.join(lower=(bottom,))
    for how, message in steps:
        if how == "answer":
            reader.answer(message)
        elif how == "want":
            widens = reader.subscriber.change(message)
            reader.follower.want(message, 0.0, widens=widens)
        else:
            reader.push(message, private=how == "private")
        if reader.errors:
            break
    while reader.subscriber.next_epoch() is not None:
        pass
    if reader.subscriber.ready:
        reader.subscriber.cursor()
