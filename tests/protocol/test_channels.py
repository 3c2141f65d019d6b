"""The channels of a segment: who is sent what, and that a loss is seen on each."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError
from epochal.protocol import messages as m
from epochal.protocol import wire
from epochal.protocol.publisher.channels import Channel, Channels
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

TOPICS = (b"", b"a", b"ab", b"b")
FILTERS = (EVERYTHING, TopicFilter([b"a"]), TopicFilter([b"a"], [b"ab"]), TopicFilter([b"b"]), TopicFilter([]))


def make(**options) -> Channels:
    numbers = itertools.count(1)
    return Channels(lambda: b"%08d" % next(numbers), **options)


def listening(channels: Channels, wanted: TopicFilter, nonce: bytes = b"n" * 16) -> Channel:
    """Join, subscribe to the channel, and then to the nonce."""
    channel = channels.join(nonce, wanted)
    assert channels.hears(channel.token, True)
    channels.joined(nonce, channel)
    return channel


def data(seq: int, topic: bytes, payload: bytes = b"x") -> m.Data:
    return m.Data(seq, seq - 1, 0, topic, 1, 0, payload)


def sent(channels: Channels) -> dict[bytes, list[m.Message]]:
    """Token -> what is sent on that channel."""
    found: dict[bytes, list[m.Message]] = {}
    for frames in channels.flush():
        found.setdefault(frames[0][1:9], []).extend(wire.decode(frames, prefix=wire.CHANNEL_PREFIX))
    return found


@pytest.mark.rule("F6", "E14", "N21")
@given(
    st.lists(st.sampled_from(FILTERS), unique=True, max_size=5),
    st.lists(st.sampled_from(TOPICS) | st.none(), max_size=12),
    st.integers(0, 70_000),
)
@example([TopicFilter([b"a"])], [b"b", b"a"], 0)
def test_each_channel_has_its_topics_and_all_else_and_names_what_was_before(filters, topics, size):
    channels = make()
    joined = [listening(channels, wanted) for wanted in filters]
    events: list[m.Event] = [
        m.Frontier(seq, seq - 1, ()) if topic is None else data(seq, topic, bytes(size))
        for seq, topic in enumerate(topics)
    ]
    for event in events:
        heard = [each for each in joined if type(event) is not m.Data or each.filter.wants(event.topic)]
        assert channels.push(event) == bool(heard)
    got = sent(channels)
    for channel in joined:
        expected, last = [], -1
        for event in events:
            if type(event) is not m.Data or channel.filter.wants(event.topic):
                expected.append(event._replace(prev=last))
                last = event.seq
        assert got.get(channel.token, []) == expected


@pytest.mark.rule("F7")
def test_a_heartbeat_says_what_was_last_on_its_channel_and_up_to_where_there_was_nothing_else():
    channels = make()
    of_a, of_all = listening(channels, TopicFilter([b"a"])), listening(channels, EVERYTHING)
    channels.push(data(0, b"a"))
    channels.push(data(1, b"b"))
    sent(channels)
    channels.push(m.Heartbeat(1))
    assert sent(channels) == {of_a.token: [m.Heartbeat(0, 1)], of_all.token: [m.Heartbeat(1)]}


@pytest.mark.rule("S21")
def test_nothing_is_encoded_for_a_channel_without_subscribers():
    channels = make()
    channel = listening(channels, TopicFilter([b"a"]))
    assert not channels.push(data(0, b"b"))
    channels.hears(channel.token, False)
    assert not channels.push(data(1, b"a"))
    assert not channels.subscribed
    assert sent(channels) == {}


@pytest.mark.rule("F12")
def test_a_channel_lives_while_it_has_subscribers_or_is_being_joined_and_its_token_is_never_used_again():
    channels, wanted = make(), TopicFilter([b"a"])
    channel = channels.join(b"1", wanted)
    assert channels.join(b"2", TopicFilter([b"a", b"ab"])) is channel
    channels.joined(b"1", channel)
    assert list(channels) == [channels.everything, channel]
    channels.hears(channel.token, True)
    channels.joined(b"2", channel)
    assert list(channels) == [channels.everything, channel]
    channels.hears(channel.token, False)
    assert list(channels) == [channels.everything]
    assert not channels.hears(channel.token, True)
    assert channels.join(b"3", wanted).token != channel.token


@pytest.mark.rule("F12")
def test_where_there_is_no_room_a_join_gets_the_channel_that_covers_it_and_carries_least():
    channels = make(most=3)
    of_a, of_b = listening(channels, TopicFilter([b"a"])), listening(channels, TopicFilter([b"b"]))
    listening(channels, EVERYTHING)
    for seq, topic in enumerate((b"", b"a", b"b", b"b")):
        channels.push(data(seq, topic, bytes(100)))
    assert [round(channels.share(each), 2) for each in (channels.everything, of_a, of_b)] == [1.0, 0.25, 0.5]
    assert channels.join(b"4", TopicFilter([b"ab"])) is of_a
    assert channels.join(b"5", TopicFilter([b"ab", b"b"])) is channels.everything
    assert len(channels) == 3


@pytest.mark.rule("F8")
def test_a_snapshot_says_what_was_last_on_the_channel_that_it_leaves_when_it_is_sent():
    channels = make()
    channel = listening(channels, TopicFilter([b"a"]))
    snapshot = m.Snapshot(1, 1, b"n" * 16, (0,), (), ())
    channels.push(data(0, b"a"))
    channels.push(data(1, b"b"))
    assert channels.left(snapshot, channel.token) == snapshot._replace(left=0)
    assert channels.left(snapshot, None) == channels.left(snapshot, b"unknown!") == snapshot


@pytest.mark.rule("E14")
@pytest.mark.parametrize("filters", [FILTERS[:1], FILTERS[:2]])
@pytest.mark.parametrize("unwritable", [data(0, b"a")._replace(time=2**64), m.Aborted(0, -1, (2**64,))])
def test_an_event_that_cannot_be_written_is_named_by_the_next_one(filters, unwritable):
    channels = make()
    joined = [listening(channels, wanted) for wanted in filters]
    with pytest.raises(LocalProtocolError):
        channels.push(unwritable)
    channels.push(data(1, b"a"))
    assert sent(channels) == {channel.token: [data(1, b"a")] for channel in joined}
