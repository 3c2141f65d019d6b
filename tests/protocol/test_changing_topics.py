"""Topics that come and go: each epoch has all of a topic, or nothing of it."""

from typing import Any

import pytest

from epochal.errors import CursorError
from epochal.protocol import messages as m
from epochal.protocol.log.history import SegmentState
from epochal.protocol.publisher.effects import Private, SendAnswers
from epochal.protocol.subscriber.cursor import MAX_TOPICS, Cursor, NewTopics
from epochal.protocol.subscriber.effects import Began, Request
from epochal.protocol.subscriber.follower import FollowerSettings
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.subscriber.seen_whole import REMEMBERED_GAPS
from epochal.protocol.subscriber.upstream_filter import FilterTimes
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter

A, B, BOTH = TopicFilter([b"a"]), TopicFilter([b"b"]), TopicFilter([b"a", b"b"])


class Stream:
    """One writer, one reader, and the segments between; `whole`: whether the reader names its topics as it joins."""

    def __init__(self, wire_up: Any, topics: TopicFilter | None = A, *, whole: bool = True, **options: Any) -> None:
        self.wiring = wire_up(segments="01", **options)
        self.writer = self.wiring.writer()
        self.options: dict[str, Any] = {"whole_filter": whole}
        self.reader = self.join(topics)

    def join(self, topics: TopicFilter | None, **options: Any) -> Any:
        reader = self.wiring.reader(None, topics=topics, **options)
        cursor = options.get("cursor")
        for segment in "01":
            begin = () if cursor is None else (cursor.positions[segment],)
            reader.join(segment, *begin, topics=topics, **self.options)
        return reader

    def publish(self, time: int, *topics: bytes, segments: str = "01") -> None:
        for segment in segments:
            for topic in topics:
                self.writer.machine.appends.append(segment, time, topic, 1, topic + segment.encode())
        self.wiring.run()

    def change(self, topics: TopicFilter | None, segments: str = "01") -> bool:
        """Change the reader's topics; the followers of other segments hear of it later."""
        widens = self.reader.machine.change(topics)
        for segment in segments:
            self.hear(segment, widens=widens)
        return bool(widens)

    def hear(self, segment: str, *, widens: bool = True) -> None:
        topics = self.reader.machine.topics
        self.reader.followers[segment].want(topics, self.wiring.now, widens=widens)
        self.wiring.run()


@pytest.mark.rule("F6", "F7", "F10")
@pytest.mark.parametrize("whole", [True, False])
def test_a_reader_of_some_topics_is_given_these_and_its_position_passes_all(wire_up, whole):
    stream = Stream(wire_up, whole=whole)
    stream.publish(0, b"a", b"b", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"])]
    stream.publish(1, b"b")
    stream.wiring.tick(3)
    for segment in "01":
        last = stream.wiring.publishers[segment].seq
        assert stream.reader.machine.position(segment) == (1, last)
    assert [began for began in stream.reader.began if began[1].resumed] == []  # it never had to join again


@pytest.mark.rule("F7")
@pytest.mark.parametrize("lost", [b"a", b"b"])
def test_a_loss_at_the_tail_is_seen_if_it_was_wanted_and_no_other(wire_up, lost):
    stream = Stream(wire_up)
    stream.reader.losing.add("0")
    stream.publish(0, lost, segments="0")
    stream.reader.losing.clear()
    stream.wiring.tick(2)
    joined_again = [began.resumed for segment, began in stream.reader.began if segment == "0"]
    assert joined_again == ([False, True] if lost == b"a" else [False])
    stream.writer.advance(1)
    assert stream.reader.epochs() == ([(0, [b"a0"])] if lost == b"a" else [])


@pytest.mark.rule("F7", "F10")
def test_a_position_that_was_reached_before_all_segments_have_begun_stays():
    machine = SubscriberMachine("uid", TimeShape.parse("int"), "01", topics=A)
    began = Began(1, SegmentState(-1, (0,), (), ()), filters=True, gap=False, resumed=False)
    machine.began("0", began)
    machine.event("0", m.Data(0, -1, 0, b"a", 1, 0, b""))
    machine.reached("0", 3)
    machine.began("1", began)
    assert machine.position("0") == (1, 3)
    assert machine.cursor().positions == {"0": (1, -1), "1": (1, -1)}  # before the epoch that is not yielded


@pytest.mark.rule("F8")
def test_a_new_topic_is_in_epochs_that_begin_after_all_segments_have_changed(wire_up):
    stream = Stream(wire_up)
    stream.publish(0, b"a", b"b")
    assert stream.change(BOTH)
    assert not stream.reader.machine.widening
    assert list(stream.reader.machine.whole_from()) == [1]
    stream.publish(0, b"a", b"b")
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(0, [b"a0", b"a0", b"a1", b"a1"]), (1, [b"a0", b"a1", b"b0", b"b1"])]
    assert [began.gap or began.resumed for _, began in stream.reader.began] == [False, False]


@pytest.mark.rule("F8")
@pytest.mark.parametrize("missed", "01")
def test_new_topics_wait_until_the_last_segment_has_said_from_where_on_they_come(wire_up, missed):
    stream = Stream(wire_up)
    stream.publish(1, b"b", segments=missed)  # of epoch 1 something is missed, of epoch 2 nothing
    assert stream.change(BOTH, segments="0")
    stream.publish(1, b"a", b"b", segments="0")
    stream.publish(2, b"b", b"a", segments="0")
    assert stream.reader.machine.widening
    assert not stream.reader.machine.saw_whole(2)
    stream.hear("1")
    assert not stream.reader.machine.widening
    stream.publish(2, b"b", segments="1")
    stream.writer.advance(3)
    assert stream.reader.epochs() == [(1, [b"a0"]), (2, [b"a0", b"b0", b"b1"])]


@pytest.mark.rule("F8")
def test_an_epoch_that_is_complete_before_all_segments_have_changed_goes_without_new_topics(wire_up):
    stream = Stream(wire_up)
    stream.change(BOTH, segments="0")
    stream.publish(0, b"a", b"b", segments="0")
    stream.writer.advance(1)
    stream.hear("1")
    assert stream.reader.epochs() == [(0, [b"a0"])]
    assert not stream.reader.machine.saw_whole(0)


@pytest.mark.rule("E18", "F8")
def test_what_was_given_whole_stays_so_whatever_is_wanted_later(wire_up):
    stream = Stream(wire_up)
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1"])]
    whole = stream.reader.machine.saw_whole
    stream.publish(1, b"b")
    stream.change(BOTH, segments="0")
    assert [whole(time) for time in (0, 1)] == [True, False]
    stream.hear("1")
    assert [whole(time) for time in (0, 1)] == [True, False]
    stream.publish(2, b"a", b"b")
    stream.writer.advance(3)
    assert [whole(time) for time in (0, 1, 2, 3)] == [True, False, True, False]
    for topics in [TopicFilter([b"a", b"b", b"%d" % n]) for n in range(2 * REMEMBERED_GAPS)]:
        stream.reader.machine.change(topics)
    assert [whole(time) for time in (0, 1, 2, 3)] == [True, False, True, False]


@pytest.mark.rule("F8", "E14")
def test_of_a_segment_held_batches_come_in_the_order_of_its_log(wire_up):
    stream = Stream(wire_up)
    stream.change(BOTH, segments="0")
    stream.publish(0, b"b", b"a", b"b", segments="0")
    stream.hear("1")
    stream.writer.advance(1)
    epoch = stream.reader.machine.next_epoch()
    assert [data.topic for _, data in epoch.batches] == [b"b", b"a", b"b"]


@pytest.mark.rule("F5", "F8")
def test_removed_topics_leave_epochs_at_once_and_are_new_when_wanted_again(wire_up):
    stream = Stream(wire_up, BOTH)
    stream.reader.machine.only_epochs()
    stream.publish(0, b"b")
    stream.writer.advance(1)  # complete, and not read yet
    stream.publish(1, b"a", b"b")
    assert not stream.change(A)
    assert stream.change(BOTH)
    stream.publish(1, b"b")
    stream.publish(2, b"b")
    stream.writer.advance(3)
    assert stream.reader.epochs() == [(1, [b"a0", b"a1"]), (2, [b"b0", b"b1"])]
    assert stream.reader.machine.buffered_bytes == stream.reader.machine.waiting_bytes == 0


@pytest.mark.rule("F8")
def test_a_change_takes_the_place_of_one_that_is_not_over(wire_up):
    stream = Stream(wire_up)
    stream.change(BOTH, segments="0")
    stream.publish(0, b"b", segments="0")
    stream.change(B)
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(1, [b"b0", b"b1"])]


@pytest.mark.rule("E19", "F8")
def test_both_channels_are_followed_until_the_new_one_has_its_snapshot(wire_up):
    stream = Stream(wire_up)
    follower, server = stream.reader.followers["0"], stream.wiring.servers["0"]
    stream.reader.machine.change(B)
    follower.want(B, 0.0, widens=True)
    (request,) = [effect.message for effect in follower.take() if isinstance(effect, Request)]
    assert isinstance(request, m.Hello)
    assert (request.filter, request.replaces) == (B.prefixes, follower._subscription.nonce)
    stream.publish(0, b"a", b"b", segments="0")  # on the old channel
    assert follower.live
    server.receive(stream.reader.peers["0"], request, stream.wiring.now)
    stream.wiring.run()
    assert {each.filter for each in server.channels} == {TopicFilter(), B}
    stream.publish(1, b"b", segments="0")
    stream.hear("1")
    stream.writer.advance(2)
    assert stream.reader.epochs() == [(1, [b"b0"])]
    assert [began.resumed for _, began in stream.reader.began] == [False, False]  # nothing was pulled


@pytest.mark.rule("F8")
@pytest.mark.parametrize("retention_bytes", [1 << 20, 0])
def test_what_was_lost_on_the_old_channel_is_pulled_before_the_new_one_is_followed(wire_up, retention_bytes):
    stream = Stream(wire_up, retention_bytes=retention_bytes)
    stream.reader.losing.add("0")
    stream.publish(0, b"a", segments="0")
    stream.reader.losing.clear()
    stream.change(BOTH)
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    gaps = [began.gap for segment, began in stream.reader.began if segment == "0"]
    if retention_bytes:
        assert gaps == [False, False]
        assert stream.reader.epochs() == [(0, [b"a0"]), (1, [b"a0", b"a1", b"b0", b"b1"])]
    else:  # a gap, and no silent loss
        assert gaps == [False, True]
        assert stream.reader.epochs() == [(1, [b"a0", b"a1", b"b0", b"b1"])]


@pytest.mark.rule("F11")
def test_only_its_own_peer_can_replace_a_subscription(wire_up):
    stream = Stream(wire_up)
    server, publisher = stream.wiring.servers["0"], stream.wiring.publishers["0"]
    nonce = stream.reader.followers["0"]._subscription.nonce
    for peer, left in ((b"somebody", None), (stream.reader.peers["0"], -1)):
        fresh = stream.wiring.nonce()
        server.receive(peer, m.Hello(9, (1,), "uid-of-the-stream", "0", fresh, A.prefixes, nonce), 0.0)
        assert [type(effect) for effect in publisher.take()] == [SendAnswers]
        server.subscribed(fresh, 0.0)
        (private,) = publisher.take()
        assert isinstance(private, Private)
        snapshot = server.channels.left(private.message, private.replaced)
        assert isinstance(snapshot, m.Snapshot)
        assert snapshot.left == left


@pytest.mark.rule("F12")
def test_a_coarse_channel_is_tried_again_after_a_while(wire_up):
    settings = FollowerSettings(filter=FilterTimes(between_changes=1.0, coarse_again=10.0))
    stream = Stream(wire_up)
    stream.options["settings"] = settings
    channels = stream.wiring.servers["0"].channels
    channels._most = 2
    other = stream.join(B)
    assert stream.wiring.servers["0"].coarse == 1
    stream.publish(0, b"a", b"b")
    channels._most = 3
    stream.wiring.tick(11)
    assert stream.wiring.servers["0"].coarse == 0
    stream.writer.advance(1)
    assert other.epochs() == [(0, [b"b0", b"b1"])]
    assert all(not began.resumed for _, began in other.began)


def test_a_narrower_filter_gets_its_channel_once_it_has_stayed_the_same(wire_up):
    stream = Stream(wire_up, BOTH)
    channels = stream.wiring.servers["0"].channels
    stream.change(A)
    stream.wiring.tick(0.5)
    assert [each.filter for each in channels] == [TopicFilter(), BOTH]
    stream.publish(0, b"a", b"b")
    stream.wiring.tick(6)
    assert [each.filter for each in channels] == [TopicFilter(), A]
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    assert stream.reader.epochs() == [(0, [b"a0", b"a0", b"a1", b"a1"])]


# ---- cursors ----


@pytest.mark.rule("F9")
def test_a_cursor_resumed_with_more_topics_gives_new_ones_only_of_epochs_that_begin_after_it(wire_up):
    stream = Stream(wire_up)
    stream.publish(0, b"b")
    stream.publish(0, b"a", b"b")
    text = stream.reader.machine.cursor().to_json()
    cursor = Cursor.from_json(text)
    assert cursor.topics == A
    stream.wiring.readers.clear()
    resumed = stream.join(BOTH, cursor=cursor)
    stream.publish(1, b"a", b"b")
    stream.writer.advance(2)
    assert resumed.epochs() == [(0, [b"a0", b"a1"]), (1, [b"a0", b"a1", b"b0", b"b1"])]


@pytest.mark.rule("F9")
def test_a_cursor_taken_while_topics_are_new_does_not_say_that_they_are_whole(wire_up):
    stream = Stream(wire_up)
    stream.publish(0, b"b")
    stream.change(BOTH)
    stream.publish(0, b"a", b"b")
    cursor = stream.reader.machine.cursor()
    assert (cursor.topics, cursor.new_topics) == (BOTH, (NewTopics(A, (1,)),))
    stream.publish(1, b"a")
    stream.writer.advance(1)
    assert stream.reader.machine.cursor().new_topics == (NewTopics(A, (1,)),)  # epoch 0 comes again, without the rest
    stream.reader.machine.only_epochs()
    assert len(stream.reader.epochs()) == 1
    stream.writer.advance(2)
    assert len(stream.reader.epochs()) == 1
    stream.writer.advance(3)
    cursor = stream.reader.machine.cursor()
    assert (cursor.topics, cursor.new_topics) == (BOTH, ())  # no epoch is left that lacks something


@pytest.mark.rule("F9")
@pytest.mark.parametrize("before", [TopicFilter([]), A])
def test_what_a_change_has_promised_is_kept_by_a_cursor(wire_up, before):
    """Epoch 9 begins after the change, and comes whole also to a reader that resumes before it."""
    stream = Stream(wire_up, before)
    stream.publish(7, b"a", b"b")
    stream.change(BOTH)
    assert list(stream.reader.machine.whole_from()) == [8]
    stream.publish(9, b"a", b"b")
    cursor = Cursor.from_json(stream.reader.machine.cursor().to_json())
    stream.wiring.readers.clear()
    resumed = stream.join(BOTH, cursor=cursor)
    assert list(resumed.machine.whole_from()) == [8]
    stream.publish(9, b"b")
    stream.writer.advance(10)
    seventh = [] if before != A else [(7, [b"a0", b"a1"])]
    assert resumed.epochs() == [*seventh, (9, [b"a0", b"a1", b"b0", b"b0", b"b1", b"b1"])]
    assert (resumed.machine.saw_whole(7), resumed.machine.saw_whole(8)) == (False, True)


@pytest.mark.rule("F9")
@pytest.mark.parametrize("amid", [False, True], ids=["over", "amid the next"])
def test_a_cursor_stays_small_through_many_changes_and_keeps_what_the_last_has_promised(wire_up, amid):
    """Each change promises another time, and epoch 0 stays open, so none of them is past."""
    many = [b"%05d" % n for n in range(300)]
    stream = Stream(wire_up)
    for n in range(len(many)):
        stream.publish(n, b"a")
        stream.change(TopicFilter([b"a", *many[: n + 1]]))
    assert list(stream.reader.machine.whole_from()) == [300]
    wanted = TopicFilter([b"a", b"z", *many]) if amid else TopicFilter([b"a", *many])
    if amid:
        stream.change(wanted, segments="0")
    stream.publish(300, b"a", many[0], many[-1])
    text = stream.reader.machine.cursor().to_json()
    assert len(text) < 3 * MAX_TOPICS
    cursor = Cursor.from_json(text)
    assert [new.whole_from for new in cursor.new_topics] == [(300,), None][: 1 + amid]
    stream.wiring.readers.clear()
    resumed = stream.join(wanted, cursor=cursor)
    assert list(resumed.machine.whole_from()) == [300]
    stream.publish(300, many[7])
    stream.writer.advance(301)
    *earlier, last = resumed.epochs()
    assert earlier == [(n, [b"a0", b"a1"]) for n in range(300)]
    assert last == (
        300,
        sorted(topic + segment for topic in (b"a", *many[:1], many[7], many[-1]) for segment in (b"0", b"1")),
    )


@pytest.mark.rule("F9")
def test_a_cursor_of_few_changes_keeps_what_each_has_promised(wire_up):
    stream = Stream(wire_up)
    stream.publish(1, b"a")
    stream.change(BOTH)
    stream.publish(2, b"a", b"b")
    stream.change(TopicFilter([b"a", b"b", b"c"]))
    cursor = Cursor.from_json(stream.reader.machine.cursor().to_json())
    assert [new.whole_from for new in cursor.new_topics] == [(2,), (3,)]


@pytest.mark.rule("F9")
@pytest.mark.parametrize("missed", ["", "1"])
@pytest.mark.parametrize("added", [[b"x"], [b"y%05d" % n for n in range(MAX_TOPICS // 5)]], ids=["one", "many"])
def test_a_cursor_of_too_many_topics_that_have_just_changed_is_resumed_with_what_is_wanted(wire_up, added, missed):
    many = [b"%05d" % n for n in range(MAX_TOPICS // 5)]
    wanted = TopicFilter([*many, *added])
    stream = Stream(wire_up, TopicFilter(many))
    stream.publish(1, many[7], added[0])
    stream.change(wanted, segments="01".replace(missed, "") if missed else "01")
    stream.publish(3, many[7], added[0])
    stream.publish(4, many[7])
    text = stream.reader.machine.cursor().to_json()
    cursor = Cursor.from_json(text)
    assert isinstance(cursor.topics, str)
    assert len(text) < 1000 or len(added) > 1, "one topic more makes a cursor no longer than that topic"
    stream.wiring.readers.clear()
    resumed = stream.join(wanted, cursor=cursor)
    stream.publish(5, added[0], segments="0")
    stream.writer.advance(6)
    old, new = [many[7] + b"0", many[7] + b"1"], [added[0] + b"0", added[0] + b"1"]
    # While a segment had not answered, nothing was promised: then where it resumes decides, which is before epoch 1.
    assert resumed.epochs() == [(1, [*old, *new] if missed else old), (3, [*old, *new]), (4, old), (5, new[:1])]


@pytest.mark.rule("F9")
def test_a_cursor_from_amid_a_change_is_resumed_with_less_and_with_more(wire_up):
    c = TopicFilter([b"a", b"b", b"c"])
    stream = Stream(wire_up)
    stream.publish(1, b"b")
    stream.change(BOTH)
    stream.publish(2, b"a", b"b", b"c")
    cursor = Cursor.from_json(stream.reader.machine.cursor().to_json())
    stream.wiring.readers.clear()
    less, more, everything = (stream.join(topics, cursor=cursor) for topics in (A, c, None))
    assert list(less.machine.whole_from()) == [0]
    stream.publish(3, b"c")
    stream.writer.advance(4)
    assert less.epochs() == [(2, [b"a0", b"a1"])]
    for each in (more, everything):
        # `c` is judged by where it resumes, which is after epoch 1 has begun and before epoch 2 has.
        assert each.epochs() == [(2, [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]), (3, [b"c0", b"c1"])]
        assert each.machine.cursor().new_topics == ()


@pytest.mark.rule("F9")
def test_what_a_cursor_says_of_topics_that_are_not_wanted_there_any_more_does_not_count_later(wire_up):
    """Wanted again, they are new: each segment judges them, by where it begins."""
    stream = Stream(wire_up)
    stream.publish(7, b"a", b"b")
    stream.change(BOTH)
    cursor = Cursor.from_json(stream.reader.machine.cursor().to_json())
    assert cursor.new_topics == (NewTopics(cursor.new_topics[0].kept, (8,)),)
    stream.wiring.readers.clear()
    resumed = stream.wiring.reader(None, topics=A, cursor=cursor)
    assert resumed.machine.change(BOTH)
    for segment, position in cursor.positions.items():
        resumed.join(segment, position, topics=BOTH, **stream.options)
    stream.writer.advance(8)
    assert resumed.epochs() == [(7, [b"a0", b"a1", b"b0", b"b1"])]


@pytest.mark.rule("F9")
def test_a_cursor_of_too_many_topics_is_resumed_with_the_same_ones_only(wire_up):
    many = TopicFilter([b"%05d" % n for n in range(MAX_TOPICS // 5)])
    stream = Stream(wire_up, many)
    cursor = Cursor.from_json(stream.reader.machine.cursor().to_json())
    assert isinstance(cursor.topics, str)
    stream.join(many, cursor=cursor)
    for other in (A, None):
        with pytest.raises(CursorError, match="same topics"):
            stream.join(other, cursor=cursor)


def test_a_cursor_without_topics_is_of_all(wire_up):
    stream = Stream(wire_up)
    stream.publish(0, b"a", b"b")
    cursor = stream.join(None).machine.cursor()
    assert cursor.topics is None
    resumed = stream.join(B, cursor=cursor)
    stream.writer.advance(1)
    assert resumed.epochs() == []  # it joined live, when the epoch had begun


@pytest.mark.rule("F8", "Q15")
@pytest.mark.parametrize("whole", [True, False])
def test_new_topics_come_also_to_a_reader_that_leaves_pushes_while_it_changes(wire_up, whole):
    stream = Stream(wire_up, whole=whole)
    stream.reader.machine.change(BOTH)
    stream.hear("1")
    follower = stream.reader.followers["0"]
    follower.want(BOTH, stream.wiring.now, widens=True)
    follower.follow_pushes(False, stream.wiring.now)
    stream.wiring.tick(3)
    assert not stream.reader.machine.widening
    stream.publish(0, b"a", b"b")
    stream.writer.advance(1)
    stream.wiring.tick(3)
    assert stream.reader.epochs() == [(0, [b"a0", b"a1", b"b0", b"b1"])]
