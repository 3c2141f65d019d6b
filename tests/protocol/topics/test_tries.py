"""Both ends of a connection: what is asked and when, what is answered, and that large filters get through too."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.errors import LimitExceeded, RemoteProtocolError
from epochal.protocol.topics import publisher_trie
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.topics.publisher_trie import PublisherTrie
from epochal.protocol.topics.requests import WINDOW, Confirm, Request, Step
from epochal.protocol.topics.subscriber_trie import SubscriberTrie

FIREHOSE = {b"": True}
SUBSCRIBE, REJECT, RESET = Step


def asked(trie: SubscriberTrie) -> list[tuple[Step, bytes]]:
    return [(request.step, request.prefix) for request in trie.take()]


def on(trie: SubscriberTrie, topic: bytes) -> list[tuple[Step, bytes]]:
    """What a batch of `topic` causes; it is confirmed at once."""
    trie.batch(topic)
    requests = trie.take()
    for request in requests:
        trie.confirm(Confirm(request.number, request.step, request.prefix))
    return [(request.step, request.prefix) for request in requests]


# ---- the subscriber's end ----


@pytest.mark.rule("N1", "N3", "N5", "N6", "N9", "N10", "N19", "F2")
def test_one_step_a_batch_leads_to_the_filter() -> None:
    trie = SubscriberTrie(TopicFilter([b"foo", b"gate/"], [b"foo/x"]), FIREHOSE)
    assert asked(trie) == [], "nothing is sent before a batch comes"
    assert on(trie, b"fab") == [(REJECT, b"fa")], "not `f`, which would mute `foo`"
    assert on(trie, b"fo") == [(SUBSCRIBE, b"foo")], "`fo` cannot be rejected; any that is not there yet"
    assert on(trie, b"foo/x") == [(REJECT, b"foo/x")]
    assert on(trie, b"foo/y") == [(SUBSCRIBE, b"gate/")], "no batch of it came, and it must not be forgotten"
    assert on(trie, b"x") == [(RESET, b"fa")], "all is there: the rest goes, the deepest first"
    assert not trie.converged
    assert on(trie, b"x") == [(RESET, b"")]
    assert trie.converged
    assert on(trie, b"x") == []


@pytest.mark.rule("N6", "F2")
def test_a_batch_causes_a_step_for_the_shortest_prefix_that_has_none() -> None:
    trie = SubscriberTrie(TopicFilter([b"a", b"abc"], [b"ab"]), FIREHOSE)
    trie.batch(b"abcd")
    trie.batch(b"abcd")
    trie.batch(b"abcd")
    assert asked(trie) == [(SUBSCRIBE, b"a"), (SUBSCRIBE, b"abc")], "a rejection waits for what is wanted below it"


@pytest.mark.rule("N4", "F3")
def test_where_nothing_would_come_a_prefix_is_asked_for_at_once() -> None:
    trie = SubscriberTrie(TopicFilter([b"a"]), {b"a": True})
    assert trie.converged
    trie.change(TopicFilter([b"a", b"b"]))
    assert asked(trie) == [(SUBSCRIBE, b"b")], "there is no firehose that would bring it"


@pytest.mark.rule("F3")
def test_a_prefix_wanted_while_the_firehose_ends_is_asked_for_at_once() -> None:
    trie = SubscriberTrie(TopicFilter([b"a"]), FIREHOSE)
    assert on(trie, b"a") == [(SUBSCRIBE, b"a")]
    trie.batch(b"x")
    assert asked(trie) == [(RESET, b"")]
    trie.change(TopicFilter([b"a", b"b"]))
    assert asked(trie) == [(SUBSCRIBE, b"b")]


@pytest.mark.rule("N15", "F3")
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_prefix_below_a_rejection_is_asked_for_at_once(confirmed: bool) -> None:
    trie = SubscriberTrie(TopicFilter([b"b"]), FIREHOSE)
    trie.batch(b"ax")
    (request,) = trie.take()
    if confirmed:
        trie.confirm(Confirm(request.number, REJECT, b"a"))
    trie.change(TopicFilter([b"b", b"ay"]))
    assert asked(trie) == [(SUBSCRIBE, b"ay")]
    trie.change(TopicFilter([b"b", b"a"]))
    if not confirmed:
        assert asked(trie) == [], "one request a prefix"
        trie.confirm(Confirm(request.number, REJECT, b"a"))
    assert asked(trie) == [(SUBSCRIBE, b"a")]


@pytest.mark.rule("F3", "F5", "N20")
def test_a_rejection_that_is_taken_back_is_reset_at_once() -> None:
    trie = SubscriberTrie(TopicFilter(None, [b"a"]), FIREHOSE)
    assert on(trie, b"a") == [(REJECT, b"a")]
    trie.change(TopicFilter())
    assert asked(trie) == [(RESET, b"a")]


@pytest.mark.rule("F5", "N20")
def test_what_is_wanted_no_more_is_reset_once_all_else_is_there() -> None:
    trie = SubscriberTrie(TopicFilter([b"a", b"b"], [b"ab"]), {b"a": True, b"ab": False, b"b": True})
    trie.change(TopicFilter([b"b", b"abc"]))
    assert asked(trie) == [(SUBSCRIBE, b"abc")], "what `a` had sent is asked for before `a` goes"
    trie.batch(b"a")
    assert asked(trie) == []
    trie.confirm(Confirm(1, SUBSCRIBE, b"abc"))
    assert on(trie, b"a") == [(RESET, b"ab")]
    assert on(trie, b"a") == [(RESET, b"a")]
    assert trie.converged


@pytest.mark.rule("F2")
def test_nothing_is_rejected_where_all_is_about_to_end() -> None:
    """Its rejection would stay for ever: no batch comes any more that causes its reset."""
    trie = SubscriberTrie(TopicFilter([b"a"]), FIREHOSE)
    assert on(trie, b"a") == [(SUBSCRIBE, b"a")]
    trie.batch(b"x")
    trie.take()
    trie.change(TopicFilter([b"a", b"b"]))
    trie.take()
    trie.batch(b"x")
    assert asked(trie) == []
    trie.change(TopicFilter(None, [b"x"]))
    trie.batch(b"x")
    assert asked(trie) == []


@pytest.mark.rule("F5", "N9")
def test_nothing_is_reset_while_something_is_under_way_below_it() -> None:
    """That would stay where nothing is sent any more, and no batch would cause its reset."""
    trie = SubscriberTrie(TopicFilter([b"a"]), FIREHOSE)
    trie.batch(b"x")
    (rejection,) = trie.take()
    assert on(trie, b"a") == [(SUBSCRIBE, b"a")]
    assert on(trie, b"y") == []
    trie.confirm(Confirm(rejection.number, REJECT, b"x"))
    assert [on(trie, b"y"), on(trie, b"y")] == [[(RESET, b"x")], [(RESET, b"")]]


@pytest.mark.rule("N14")
def test_what_finds_no_room_is_sent_as_confirmations_come() -> None:
    trie = SubscriberTrie(TopicFilter([]), {})
    wanted = [b"%d/" % number for number in range(20)]
    trie.change(TopicFilter(wanted))
    requests = trie.take()
    assert [request.prefix for request in requests] == sorted(wanted)[:WINDOW]
    trie.confirm(Confirm(2, SUBSCRIBE, requests[1].prefix))
    assert trie.take() == [], "the numbers under way lie close together, so that a publisher need not keep many"
    trie.confirm(Confirm(1, SUBSCRIBE, requests[0].prefix))
    assert [request.number for request in trie.take()] == [WINDOW + 1, WINDOW + 2]
    trie.change(TopicFilter([wanted[0]]))
    while (step := on(trie, b"x")) or trie.take():
        assert not step or step[0][0] is RESET, "what waited is not wanted any more"


@pytest.mark.rule("N8", "F4")
def test_only_the_confirmation_of_what_is_under_way_counts() -> None:
    trie = SubscriberTrie(TopicFilter([b"a"]), {})
    assert asked(trie) == [(SUBSCRIBE, b"a")]
    trie.again()
    trie.again()
    assert [request.number for request in trie.take()] == [1]
    trie.confirm(Confirm(9, SUBSCRIBE, b"a"))
    assert not trie.converged
    trie.confirm(Confirm(1, SUBSCRIBE, b"a"))
    assert trie.converged
    trie.change(TopicFilter([]))
    assert on(trie, b"a") == [(RESET, b"a")]
    trie.change(TopicFilter([b"a"]))
    (request,) = trie.take()
    trie.confirm(Confirm(1, SUBSCRIBE, b"a"))
    assert not trie.converged, "a confirmation of the first time"
    assert request.number == 3
    trie.again()
    assert len(trie.take()) == 1
    trie.again()
    trie.confirm(Confirm(3, SUBSCRIBE, b"a"))
    assert trie.take() == [], "confirmed meanwhile"


# ---- the publisher's end ----


@pytest.mark.rule("N7")
def test_the_publisher_keeps_a_bit_a_prefix_and_confirms() -> None:
    trie = PublisherTrie({b"": True})
    assert trie.receive(Request(1, 1, REJECT, b"a")) == Confirm(1, REJECT, b"a")
    assert trie.filter == TopicFilter(None, [b"a"])
    assert trie.receive(Request(2, 2, SUBSCRIBE, b"ab")) == Confirm(2, SUBSCRIBE, b"ab")
    assert trie.receive(Request(3, 3, RESET, b"")) == Confirm(3, RESET, b"")
    assert trie.filter == TopicFilter([b"ab"])
    assert dict(trie.bits) == {b"a": False, b"ab": True}
    assert trie.receive(Request(4, 4, RESET, b"nothing")) == Confirm(4, RESET, b"nothing")


@pytest.mark.rule("F4", "N8")
def test_a_late_copy_undoes_nothing() -> None:
    trie = PublisherTrie({})
    subscribe = Request(2, 1, SUBSCRIBE, b"a")
    assert trie.receive(subscribe) == trie.receive(subscribe) == Confirm(2, SUBSCRIBE, b"a")
    reset = Request(3, 1, RESET, b"a")
    assert trie.receive(reset) == Confirm(3, RESET, b"a")
    assert trie.receive(subscribe) == Confirm(2, SUBSCRIBE, b"a"), "confirmed again, as 1 is still under way"
    assert dict(trie.bits) == {}
    assert trie.receive(Request(4, 4, SUBSCRIBE, b"b")) == Confirm(4, SUBSCRIBE, b"b")
    assert trie.receive(subscribe) is None
    assert trie.receive(Request(1, 1, SUBSCRIBE, b"c")) is None
    assert dict(trie.bits) == {b"b": True}


@pytest.mark.rule("F4", "E9")
@pytest.mark.parametrize(("number", "oldest"), [(1, 2), (WINDOW + 1, 1), (2**63, 5)])
def test_a_number_that_is_not_under_way_is_refused(number: int, oldest: int) -> None:
    trie = PublisherTrie({})
    with pytest.raises(RemoteProtocolError, match=f"number {number}.*under way is {oldest}"):
        trie.receive(Request(number, oldest, SUBSCRIBE, b"a"))
    assert dict(trie.bits) == {}
    assert trie.receive(Request(1, 1, SUBSCRIBE, b"a"))


@pytest.mark.rule("E9")
def test_a_connection_has_so_many_prefixes_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_trie, "MAX_ENTRIES", 2)
    monkeypatch.setattr(publisher_trie, "MAX_BYTES", 5)
    trie = PublisherTrie({b"aa": True})
    with pytest.raises(LimitExceeded, match="more than 5 bytes"):
        trie.receive(Request(1, 1, SUBSCRIBE, b"bbbb"))
    assert trie.receive(Request(1, 1, SUBSCRIBE, b"bb")), "nothing had changed"
    with pytest.raises(LimitExceeded, match="2 prefixes"):
        trie.receive(Request(2, 2, SUBSCRIBE, b"c"))
    assert trie.receive(Request(2, 2, REJECT, b"bb"))
    assert trie.receive(Request(3, 3, RESET, b"bb"))
    assert trie.receive(Request(4, 4, SUBSCRIBE, b"ccc"))
    assert trie.filter == TopicFilter([b"aa", b"ccc"])


# ---- both ----

TOPICS = [bytes(letters) for length in range(5) for letters in product(b"abc", repeat=length)]
signs = st.dictionaries(st.sampled_from(TOPICS), st.booleans(), max_size=40)


@pytest.mark.rule("N2", "N8", "N10", "N11", "N12", "F1", "F2", "F3", "F4", "F5")
@settings(max_examples=60)
@given(st.lists(signs, min_size=1, max_size=4), st.booleans(), st.integers(0, 2**32), st.sampled_from([0.0, 0.3]))
def test_a_publisher_comes_to_send_just_what_is_wanted(
    filters: list[dict[bytes, bool]], firehose: bool, seed: int, loss: float
) -> None:
    """Large filters, changed on the way; messages are lost, come twice and in any order. Nothing is given up."""
    chance = random.Random(seed)
    first = TopicFilter.of(filters[0])
    known = FIREHOSE if firehose else dict(first)
    subscriber, publisher = SubscriberTrie(first, known), PublisherTrie(known)
    waiting: list[Request | Confirm] = []
    changes = [TopicFilter.of(each) for each in filters[1:]]
    for _ in range(20_000):
        if changes and chance.random() < 0.02:
            subscriber.change(changes.pop(0))
        sent = [topic for topic in TOPICS if publisher.filter.wants(topic)]
        if sent:
            subscriber.batch(chance.choice(sent))
        if chance.random() < 0.1:
            subscriber.again()
        for request in subscriber.take():
            waiting += [request] * chance.choice((1, 1, 2))
        chance.shuffle(waiting)
        for message in [waiting.pop() for _ in range(min(len(waiting), 3))]:
            if chance.random() < loss:
                continue
            if isinstance(message, Confirm):
                subscriber.confirm(message)
            elif (confirm := publisher.receive(message)) is not None:
                waiting.append(confirm)
        if subscriber.converged and not changes:
            break
    assert subscriber.converged
    assert dict(publisher.bits) == dict(subscriber.wanted)


@pytest.mark.rule("F2", "F3")
@given(signs)
def test_as_many_batches_are_enough_as_there_are_steps(entries: dict[bytes, bool]) -> None:
    wanted = TopicFilter.of(entries)
    subscriber, publisher = SubscriberTrie(wanted, FIREHOSE), PublisherTrie(FIREHOSE)
    steps = dict.fromkeys(Step, 0)
    batches = 0
    while not subscriber.converged:
        topic = next(topic for topic in TOPICS[batches % len(TOPICS) :] + TOPICS if publisher.filter.wants(topic))
        subscriber.batch(topic)
        batches += 1
        for request in subscriber.take():
            steps[request.step] += 1
            confirm = publisher.receive(request)
            assert confirm is not None
            subscriber.confirm(confirm)
    others = steps[REJECT] - sum(not sign for _, sign in wanted)
    assert batches == sum(steps.values()) == len(wanted) + others + steps[RESET] - (b"" in wanted)
    assert dict(publisher.bits) == dict(wanted)
