"""Which relay is chosen: by free capacity, with little movement, and not one that failed a moment ago."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.catalog_api.answers import RelayInfo
from epochal.client.catalog.relay_choice import RelayChoice, Via
from epochal.errors import UsageError


def relay(
    key: str, free: int = 10, *, load: int = 0, state: str = "ready", name: str = "eu", **more: object
) -> RelayInfo:
    known = RelayInfo(
        key, name, "demo/x", "u", {}, {}, "direct", free + load, state, (), load, None, "", "now", verified=True
    )
    return replace(known, **more)  # type: ignore[arg-type]  # of the fields that there are


RELAYS = st.lists(
    st.builds(
        relay,
        st.text("abcdef", min_size=1, max_size=6),
        st.integers(-2, 10_000),
        load=st.integers(2, 10_000),
        state=st.sampled_from(["ready", "waiting", "draining", "later"]),
    ),
    max_size=8,
    unique_by=lambda known: known.id,
)
KEY = st.binary(min_size=16, max_size=16)


def ids(relays: list[RelayInfo]) -> list[str]:
    return [known.id for known in relays]


def first_of(relays: list[RelayInfo], count: int) -> Counter[str]:
    """How many of so many subscriptions have each relay first."""
    choices = [RelayChoice(Via(), number.to_bytes(16, "big")) for number in range(count)]
    return Counter(choice.ranked(relays, 0.0)[0].id for choice in choices)


@given(relays=RELAYS, key=KEY)
def test_only_ready_relays_with_room_are_ranked_and_each_of_them_once(relays: list[RelayInfo], key: bytes) -> None:
    ranked = RelayChoice(Via(), key).ranked(relays, 0.0)
    assert sorted(ids(ranked)) == sorted(
        known.id for known in relays if known.state == "ready" and known.load < known.capacity
    )
    assert RelayChoice(Via(), key).ranked(relays[::-1], 0.0) == ranked, "the order of the list does not matter"
    assert RelayChoice(Via("direct"), key).ranked(relays, 0.0) == []


@given(relays=RELAYS, key=KEY, which=st.integers(0, 7))
def test_when_one_leaves_all_others_keep_their_order(relays: list[RelayInfo], key: bytes, which: int) -> None:
    choice = RelayChoice(Via(), key)
    before = choice.ranked(relays, 0.0)
    gone = relays[which % len(relays)].id if relays else ""
    left = [known for known in relays if known.id != gone]
    assert choice.ranked(left, 0.0) == [known for known in before if known.id != gone]


@given(relays=RELAYS, key=KEY, more=st.integers(1, 10_000))
def test_more_room_at_one_never_moves_a_subscription_between_others(
    relays: list[RelayInfo], key: bytes, more: int
) -> None:
    choice = RelayChoice(Via(), key)
    before = choice.ranked(relays, 0.0)
    if not before:
        return
    grown = before[-1]
    roomier = [replace(known, capacity=known.capacity + more) if known is grown else known for known in relays]
    assert choice.ranked(roomier, 0.0)[0].id in (before[0].id, grown.id)


def test_relays_are_first_in_proportion_to_their_free_capacity() -> None:
    relays = [relay("a", 100), relay("b", 300, load=700), relay("c", 600), relay("full", 0, load=9)]
    found = first_of(relays, 5000)
    assert found["full"] == 0
    for key, share in (("a", 0.1), ("b", 0.3), ("c", 0.6)):
        assert abs(found[key] / 5000 - share) < 0.03  # four standard deviations are 0.028
    left = first_of(relays[:2], 5000)
    assert abs(left["a"] / 5000 - 0.25) < 0.03


@given(key=KEY, name=st.sampled_from(["eu", "us", "asia"]))
def test_a_named_relay_means_the_replicas_of_that_name(key: bytes, name: str) -> None:
    relays = [relay("e1"), relay("e2"), relay("u1", name="us")]
    ranked = RelayChoice(Via("relay", name), key).ranked(relays, 0.0)
    assert {known.name for known in ranked} == ({name} if name != "asia" else set())


def test_a_relay_never_reads_from_itself_nor_from_one_behind_it() -> None:
    relays = [relay("self"), relay("behind", path=("hub", "self")), relay("other", path=("hub",))]
    via = Via("relay", exclude=frozenset({"self"}))
    assert ids(RelayChoice(via, b"key").ranked(relays, 0.0)) == ["other"]


def test_one_that_failed_is_avoided_for_longer_each_time_until_it_works() -> None:
    choice, relays = RelayChoice(Via(avoid=5.0, longest=15.0), b"key"), [relay("a"), relay("b")]
    first, second = ids(choice.ranked(relays, 0.0))
    now = 0.0
    for seconds in (5.0, 10.0, 15.0, 15.0):
        choice.ended(first, now)
        choice.ended(first, now + 1)  # another segment had it too: that is no second failure
        assert ids(choice.ranked(relays, now)) == [second]
        assert ids(choice.ranked(relays, now + seconds - 0.1)) == [second]
        now += seconds
        assert ids(choice.ranked(relays, now)) == [first, second]
    choice.ended(first, now, lived=6.0)
    assert ids(choice.ranked(relays, now)) == [first, second], "it served, and said that it ends: it is tried again"
    choice.ended(first, now, lived=4.0)
    assert ids(choice.ranked(relays, now)) == [second]
    assert ids(choice.ranked(relays, now + 5.0)) == [first, second], "what was before is forgotten"
    choice.ended(first, now + 5.0, lived=600.0, silent=True)
    assert ids(choice.ranked(relays, now + 5.0)) == [second]


@pytest.mark.rule("F13")
def test_one_that_begins_again_is_joined_again_once() -> None:
    choice, relays = RelayChoice(Via(avoid=5.0), b"key"), [relay("a"), relay("b")]
    first, second = ids(choice.ranked(relays, 0.0))
    choice.ended(first, 0.0, lived=1.0, notified=True)
    assert ids(choice.ranked(relays, 0.0)) == [first, second]
    choice.ended(first, 1.0, notified=True)
    assert ids(choice.ranked(relays, 1.0)) == [second]
    assert ids(choice.ranked(relays, 6.0)) == [first, second]


def test_failures_of_long_ago_are_forgotten() -> None:
    choice = RelayChoice(Via(avoid=5.0, longest=15.0), b"key")
    for number in range(1000):
        choice.ended(f"r{number}", 100.0 * number)
    assert len(choice._failures) < 3


@pytest.mark.rule("F13")
def test_a_relay_that_begins_again_says_so_at_each_segment_and_is_joined_again_once() -> None:
    choice, relays = RelayChoice(Via(avoid=5.0), b"key"), [relay("a"), relay("b")]
    first, second = ids(choice.ranked(relays, 0.0))
    for now in (10.0, 10.001):
        choice.ended(first, now, lived=1.0, notified=True)
    assert ids(choice.ranked(relays, 10.002)) == [first, second]
    choice.ended(first, 11.1, lived=0.1, notified=True)
    assert ids(choice.ranked(relays, 11.2)) == [second], "it does so again and again"


def test_an_error_says_why_there_is_no_relay() -> None:
    def why(via: Via, *relays: RelayInfo, failed: tuple[str, ...] = ()) -> str:
        choice = RelayChoice(via, b"key")
        for key in failed:
            choice.ended(key, 0.0)
        assert choice.ranked(relays, 2.0) == []
        return choice.why_none(relays, 2.0)

    assert why(Via("relay")) == "no relay is registered"
    assert why(Via("relay", "eu")) == "no relay eu is registered"
    assert why(Via("relay", "us"), relay("a"), relay("b")) == "no relay us is registered (only eu)"
    assert why(Via("relay"), relay("a", state="waiting"), relay("b", state="draining")) == (
        "no relay is ready (a is waiting, b is draining)"
    )
    assert why(Via("relay"), relay("a", 0, load=7), relay("b", state="waiting")) == "every relay is full (a: 7/7)"
    assert why(Via("relay"), relay("a"), relay("b"), failed=("a", "b")) == (
        "every relay failed (a, b); one is tried again in 3.0 s"
    )
    many = [relay(f"r{number}", state="waiting") for number in range(9)]
    assert why(Via("relay"), *many).endswith("r4 is waiting ...)")
    own = Via("relay", exclude=frozenset({"a"}))
    assert why(own, relay("a")) == "no relay is registered but those that are excluded"


@pytest.mark.parametrize("text", ["", "relay:", "relays", "auto:x", "direct:eu", "Relay"])
def test_a_way_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="via= is auto, direct, relay or relay:NAME"):
        Via.parse(text)


def test_the_ways_that_there_are() -> None:
    assert [Via.parse(text) for text in ("auto", "direct", "relay", "relay:eu:1")] == [
        Via(),
        Via("direct"),
        Via("relay"),
        Via("relay", "eu:1"),
    ]
