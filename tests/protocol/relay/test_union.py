"""What a relay asks for: the union of what its subscribers want, wider at once and narrower later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.relay.union import NOTHING, FilterUnion, UnionTimes
from epochal.protocol.topics.filter import EVERYTHING, TopicFilter

A, B = TopicFilter([b"a"]), TopicFilter([b"b"])
PREFIXES = st.lists(st.binary(max_size=2), max_size=4)
FILTERS = st.builds(TopicFilter, PREFIXES, PREFIXES)


def union(linger: float = 30.0, **bounds: int) -> FilterUnion:
    return FilterUnion(UnionTimes(linger=linger, recover=60.0), **bounds)


@pytest.mark.rule("F17", "N18")
def test_it_is_wider_at_once_and_narrower_after_a_while() -> None:
    asked = union()
    assert asked.wanted == NOTHING
    asked.update([A], 0.0)
    assert asked.wanted == A
    asked.update([A, B], 1.0)
    assert asked.wanted == A.union(B)
    asked.update([B], 2.0)
    assert asked.wanted == A.union(B), "most who leave come back"
    asked.update([B], 31.0)
    assert asked.wanted == A.union(B), "30 seconds after `a` was wanted last, and not before"
    asked.update([B], 31.1)
    assert asked.wanted == B
    asked.update([], 61.0)
    asked.update([], 61.2)
    assert asked.wanted == NOTHING


@pytest.mark.rule("F17", "N18")
def test_twenty_equal_filters_are_one_and_end_with_the_last() -> None:
    asked = union()
    asked.update([TopicFilter([b"a"], [b"b"]) for _ in range(20)], 0.0)
    assert asked.wanted == A
    asked.update([A], 20.0)
    asked.update([A], 100.0)
    assert asked.wanted == A
    asked.update([], 131.0)
    assert asked.wanted == NOTHING


@pytest.mark.rule("F17", "N18")
def test_beyond_its_bound_it_is_everything_until_half_of_it_has_held_for_a_minute() -> None:
    asked = union(0.0, most_entries=4)
    prefixes = [bytes([number]) for number in range(8)]
    asked.update([TopicFilter(prefixes[:4])], 0.0)
    assert asked.wanted == TopicFilter(prefixes[:4])
    asked.update([TopicFilter(prefixes[:3]), TopicFilter(prefixes[3:5])], 1.0)
    assert asked.wanted == EVERYTHING
    asked.update([TopicFilter(prefixes[:3])], 2.0)
    asked.update([TopicFilter(prefixes[:3])], 100.0)
    assert asked.wanted == EVERYTHING, "three of four is more than half"
    asked.update([TopicFilter(prefixes[:2])], 101.0)
    asked.update([TopicFilter(prefixes[:3])], 150.0)
    asked.update([TopicFilter(prefixes[:2])], 151.0)
    asked.update([TopicFilter(prefixes[:2])], 210.0)
    assert asked.wanted == EVERYTHING, "it has held since 151"
    asked.update([TopicFilter(prefixes[:2])], 211.0)
    assert asked.wanted == TopicFilter(prefixes[:2])


@pytest.mark.rule("F17")
def test_its_bytes_are_bounded_too() -> None:
    asked = union(0.0, most_bytes=10)
    asked.update([TopicFilter([b"12345"]), TopicFilter([b"12345", b"67890"])], 0.0)
    assert asked.wanted == TopicFilter([b"12345", b"67890"])
    asked.update([TopicFilter([b"12345"]), TopicFilter([b"678901"])], 1.0)
    assert asked.wanted == EVERYTHING


@pytest.mark.rule("F17")
def test_of_many_filters_that_no_one_has_any_more_the_newest_are_remembered() -> None:
    asked = union(most_entries=10_000)
    for number in range(1500):
        asked.update([TopicFilter([b"%d" % number])], number / 100)
    assert len(asked._had) == 1025
    assert not asked.wanted.wants(b"1/")
    assert asked.wanted.wants(b"1499")
    assert asked.wanted.wants(b"900")


@pytest.mark.rule("F17", "N18")
@given(st.lists(st.lists(FILTERS, max_size=3), max_size=6), st.lists(st.binary(max_size=3), max_size=10))
def test_it_has_every_topic_that_someone_wants_and_without_lingering_no_other(
    steps: list[list[TopicFilter]], topics: list[bytes]
) -> None:
    asked, at_once = union(), union(0.0)
    for now, living in enumerate(steps):
        asked.update(living, float(now))
        at_once.update(living, float(now))
        for topic in topics:
            wanted = any(each.wants(topic) for each in living)
            assert at_once.wanted.wants(topic) == wanted
            assert at_once.wanted == NOTHING.union(*living)
            assert asked.wanted.wants(topic) or not wanted
