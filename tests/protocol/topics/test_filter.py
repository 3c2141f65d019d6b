"""A filter is the set of topics that its prefixes say, whatever the prefixes."""

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.topics import filter as filter_module
from epochal.protocol.topics.filter import TopicFilter

ALL = [bytes(letters) for length in range(5) for letters in product(b"ab", repeat=length)]
"""Every topic of up to four letters, which is one letter more than the prefixes have."""
signs = st.dictionaries(st.sampled_from([topic for topic in ALL if len(topic) < 4]), st.booleans(), max_size=8)


def decided(entries: dict[bytes, bool], topic: bytes) -> bool:
    """What the longest prefix says, looked for in the simplest way."""
    above = [prefix for prefix in entries if topic.startswith(prefix)]
    return entries[max(above, key=len)] if above else False


def topics(wanted: TopicFilter) -> set[bytes]:
    return {topic for topic in ALL if wanted.wants(topic)}


@pytest.mark.rule("F1", "N7", "N11")
@given(signs)
def test_the_longest_prefix_decides(entries: dict[bytes, bool]) -> None:
    found = TopicFilter.of(entries)
    assert topics(found) == {topic for topic in ALL if decided(entries, topic)}
    assert topics(found) == topics(found), "also when it is asked again"


@pytest.mark.rule("F1", "N10")
@given(signs, signs)
def test_equal_filters_have_one_normal_form_and_no_entry_of_it_can_be_left_out(
    one: dict[bytes, bool], other: dict[bytes, bool]
) -> None:
    first, second = TopicFilter.of(one), TopicFilter.of(other)
    assert (first == second) is (topics(first) == topics(second))
    assert first != second or hash(first) == hash(second)
    for prefix in dict(first):
        assert TopicFilter.of({each: sign for each, sign in first if each != prefix}) != first


@pytest.mark.rule("F1")
@given(signs, signs, signs)
def test_covers_and_union_are_those_of_sets(
    one: dict[bytes, bool], two: dict[bytes, bool], three: dict[bytes, bool]
) -> None:
    filters = [TopicFilter.of(each) for each in (one, two, three)]
    assert filters[0].covers(filters[1]) is (topics(filters[0]) >= topics(filters[1]))
    union = filters[0].union(*filters[1:])
    assert topics(union) == set().union(*map(topics, filters))
    assert all(union.covers(each) for each in filters)
    assert union == TopicFilter.of(dict(union)), "in normal form"


@pytest.mark.rule("F2", "N5")
@given(signs, st.sampled_from(ALL))
def test_the_shortest_prefix_below_which_nothing_is_wanted(entries: dict[bytes, bool], topic: bytes) -> None:
    found = TopicFilter.of(entries)
    wanted = [prefix for prefix, sign in found if sign]
    free = [topic[:length] for length in range(1, len(topic) + 1)]
    free = [prefix for prefix in free if not any(each.startswith(prefix) for each in wanted)]
    assert found.shortest_unwanted(topic) == (free[0] if free else None)


@pytest.mark.rule("F1")
def test_a_prefix_that_is_both_is_wanted_and_nothing_given_is_everything() -> None:
    assert TopicFilter([b"a"], [b"a"]) == TopicFilter([b"a"])
    assert TopicFilter() == TopicFilter([b""]) != TopicFilter([])
    assert not TopicFilter([]).wants(b"")
    assert repr(TopicFilter(None, [b"a"])) == "TopicFilter(+b'' -b'a')"
    assert (len(TopicFilter(None, [b"a"])), TopicFilter([b"ab", b"c"]).size) == (2, 3)
    assert b"a" in TopicFilter([b"a"])
    assert b"ab" not in TopicFilter([b"a"])
    assert TopicFilter([b"a"]) != "a"


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_module, "MAX_REMEMBERED", 10)
    found = TopicFilter([b"1"])
    numbers: Iterable[bytes] = [str(number).encode() for number in range(100)]
    assert sum(map(found.wants, numbers)) == 11
    assert len(found._known) <= 10
