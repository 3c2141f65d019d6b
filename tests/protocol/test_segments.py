"""Key ranges cover the key space once, and keys fall into them alike everywhere."""

from hashlib import blake2b
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import LocalProtocolError
from epochal.protocol.segments import KEY_SPACE, KeyRange, Placement, key_point, key_ranges


@given(st.integers(1, 2000))
def test_even_ranges_cover_the_key_space_exactly_once(count):
    ranges = key_ranges(count)
    assert (ranges[0].lo, ranges[-1].hi, len(ranges)) == (0, KEY_SPACE, count)
    assert all(a.hi == b.lo for a, b in pairwise(ranges))
    sizes = {span.hi - span.lo for span in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_a_stream_has_a_segment():
    with pytest.raises(LocalProtocolError):
        key_ranges(0)


def test_the_point_of_a_key_is_its_blake2b():
    assert key_point(b"JFK") == int.from_bytes(blake2b(b"JFK", digest_size=8).digest(), "big")
    assert key_point(b"") == 0xE4A6A0577479B2B4


@pytest.mark.rule("S25")
@given(st.binary(max_size=20), st.integers(1, 7))
def test_a_key_falls_into_the_segment_whose_range_holds_its_point(key, count):
    ranges = key_ranges(count)
    placement = Placement([(str(n), span) for n, span in enumerate(ranges)])
    assert key_point(key) in ranges[int(placement.segment(key))]
    assert placement.segment(key) == placement.segment(key)


def test_bounds_belong_to_the_upper_range():
    span = KeyRange(10, 20)
    assert [point in span for point in (9, 10, 19, 20)] == [False, True, True, False]


def test_without_a_key_segments_take_turns():
    placement = Placement([(str(n), span) for n, span in enumerate(key_ranges(3))])
    turns = [placement.segment(None) for _ in range(9)]
    assert [turns.count(segment) for segment in "012"] == [3, 3, 3]
    assert all(a != b for a, b in pairwise(turns))


def test_very_many_keys_are_placed_without_remembering_them_all():
    placement = Placement([(str(n), span) for n, span in enumerate(key_ranges(2))])
    first = {b"%d" % n: placement.segment(b"%d" % n) for n in range(10_000)}
    assert all(placement.segment(key) == segment for key, segment in first.items())
    assert len(placement._by_key) <= 4096


@pytest.mark.parametrize("spans", [[(0, 5), (6, KEY_SPACE)], [(0, 5), (4, KEY_SPACE)], [(1, KEY_SPACE)], [(0, 9)], []])
def test_ranges_with_holes_or_overlaps_are_refused(spans):
    with pytest.raises(LocalProtocolError, match=r"hole|overlap"):
        Placement([(str(n), KeyRange(*span)) for n, span in enumerate(spans)])
