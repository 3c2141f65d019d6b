"""Many filters at once decide as each of them alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.topics.merged import MergedFilters

PREFIX = st.text("ab", max_size=4).map(str.encode)
FILTERS = st.lists(st.dictionaries(PREFIX, st.booleans(), max_size=5).map(TopicFilter.of), max_size=8)


@pytest.mark.rule("F1", "F6")
@given(FILTERS, st.sets(st.integers(0, 7)), PREFIX)
def test_each_filter_wants_among_many_what_it_wants_alone(filters, removed, topic):
    merged = MergedFilters()
    for number, each in enumerate(filters):
        merged.put(number, each)
    for number, each in enumerate(filters):
        if number in removed:
            merged.remove(number, each)
    left = [number for number, each in enumerate(filters) if number not in removed and each.wants(topic)]
    assert merged.wanting(topic) == sum(1 << number for number in left)


@given(FILTERS)
def test_nothing_is_left_of_filters_that_were_removed(filters):
    merged = MergedFilters()
    for number, each in enumerate(filters):
        merged.put(number, each)
    for number, each in enumerate(filters):
        merged.remove(number, each)
    assert (merged._nodes, merged._of_length, merged._lengths) == ({}, {}, [])
