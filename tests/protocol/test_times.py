"""Times: shapes, the product order, and the corners just past a time."""

import copy
import pickle
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import TimeShapeError
from epochal.protocol.time_codec import TimeCodec
from epochal.protocol.times import MAX_TIME, TimeShape, from_json, join, less_equal, less_than, to_json

FORMS = st.recursive(st.none(), lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=5)
SMALL = st.integers(0, 2)


def times_of(form, ints=SMALL):
    if form is None:
        return ints
    return st.tuples(*(times_of(part, ints) for part in form))


@st.composite
def shape_and_times(draw, count):
    form = draw(FORMS)
    return TimeShape(form), *(draw(times_of(form)) for _ in range(count))


def leaves(time):
    return [time] if isinstance(time, int) else [leaf for part in time for leaf in leaves(part)]


# ---- order ----


@given(shape_and_times(2))
def test_the_order_is_that_of_all_ints_side_by_side(drawn):
    _, a, b = drawn
    assert less_equal(a, b) == all(x <= y for x, y in zip(leaves(a), leaves(b), strict=True))
    assert less_than(a, b) == (less_equal(a, b) and a != b)


@given(shape_and_times(3))
def test_join_is_the_least_of_what_both_reach(drawn):
    _, a, b, c = drawn
    joined = join(a, b)
    assert less_equal(a, joined)
    assert less_equal(b, joined)
    assert joined == join(b, a)
    assert join(a, join(b, c)) == join(joined, c)
    assert (less_equal(a, c) and less_equal(b, c)) == less_equal(joined, c)


@pytest.mark.rule("E18")
@given(shape_and_times(2))
def test_pythons_own_order_is_a_linear_extension(drawn):
    _, a, b = drawn
    if less_than(a, b):
        assert sorted([b, a]) == [a, b]


@given(shape_and_times(2))
def test_bottom_is_before_everything(drawn):
    shape, time, _ = drawn
    assert less_equal(shape.bottom, time)
    assert shape.check(shape.bottom) == shape.bottom


# ---- successors ----

GRIDS = [("int", [*range(5)]), ("(int, int)", [*product(range(4), repeat=2)]), ("()", [()])]
GRIDS += [("(int, (int, int))", [(a, (b, c)) for a, b, c in product(range(3), repeat=3)])]


@pytest.mark.parametrize(("text", "grid"), GRIDS)
def test_what_is_not_below_a_time_is_what_its_successors_reach(text, grid):
    shape = TimeShape.parse(text)
    for time in grid:
        corners = shape.successors_past(time)
        for other in grid:
            assert any(less_equal(corner, other) for corner in corners) == (not less_equal(other, time))


def test_nothing_is_past_the_greatest_time():
    assert TimeShape.parse("int").successors_past(MAX_TIME) == []
    assert TimeShape.parse("(int, int)").successors_past((MAX_TIME, 0)) == [(0, 1)]


# ---- shapes ----


@pytest.mark.rule("S34")
@given(FORMS)
def test_a_shape_is_read_back_from_its_spelling(form):
    assert TimeShape.parse(str(TimeShape(form))) == TimeShape(form)


@pytest.mark.rule("S34")
@pytest.mark.parametrize(
    ("text", "time"),
    [("int", 7), ("()", ()), ("(int,)", (7,)), ("(int, int)", (7, 0)), (" ( int,(int , () ) ) ", (1, (2, ())))],
)
def test_times_of_every_shape_pass_and_travel_as_json(text, time):
    shape = TimeShape.parse(text)
    assert shape.check(time) == time
    assert shape.from_json(to_json(time)) == time


@pytest.mark.parametrize(
    "text", ["", "float", "(int", "int)", "(int int)", "(int,,int)", "(,)", "int int", "[int]", "()()"]
)
def test_what_is_no_shape(text):
    with pytest.raises(TimeShapeError, match="is no time shape"):
        TimeShape.parse(text)


def test_shapes_have_limits():
    with pytest.raises(TimeShapeError, match="deeper"):
        TimeShape.parse("(" * 10 + ")" * 10)
    with pytest.raises(TimeShapeError, match="more than 32"):
        TimeShape.parse("(" + "int, " * 33 + ")")
    with pytest.raises(TimeShapeError, match="a string"):
        TimeShape.parse(3)


@pytest.mark.parametrize(
    "time", [-1, MAX_TIME + 1, True, 1.0, "1", None, (1,), [1], (1, 2, 3), ((1, 2), 3), (1, True), (1, -1)]
)
@pytest.mark.parametrize("text", ["int", "(int, int)"])
def test_a_time_of_another_shape_is_refused(text, time):
    with pytest.raises(TimeShapeError, match="have the shape"):
        TimeShape.parse(text).check(time)


@pytest.mark.parametrize("value", [None, "1", 1.5, True, [1, None], {"a": 1}])
def test_json_that_is_no_time_is_refused(value):
    with pytest.raises(TimeShapeError):
        from_json(value)


# ---- times of the application ----


@dataclass(frozen=True)
class Hour:
    """A time as an application might have it."""

    day: int
    hour: int


def test_a_shape_can_be_sent_to_another_process():
    shape = TimeShape.parse("(int, (int,))")
    assert pickle.loads(pickle.dumps(shape)) == copy.deepcopy(shape) == shape


def test_a_time_that_nests_deeper_than_any_shape_is_refused():
    assert str(from_json(nested(9))).count("(") == 9
    for levels in (10, 600, 100_000):
        with pytest.raises(TimeShapeError):
            from_json(nested(levels))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.rule("S34")
@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 400), st.integers(0, 23))
def test_an_applications_own_times_travel_by_a_codec_that_keeps_the_order(day, hour, other_day, other_hour):
    codec = TimeCodec[Hour](lambda t: (t.day, t.hour), lambda pair: Hour(*leaves(pair)))
    one, other = Hour(day, hour), Hour(other_day, other_hour)
    assert codec.decode(codec.encode(one)) == one
    in_order = day <= other_day and hour <= other_hour
    assert less_equal(codec.encode(one), codec.encode(other)) == in_order
