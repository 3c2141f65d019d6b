"""Cursors are read back as they were written, and what is none is said to be none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import CursorError
from epochal.protocol.messages import Position
from epochal.protocol.subscriber.cursor import Cursor, NewTopics
from epochal.protocol.subscriber.machine import SubscriberMachine
from epochal.protocol.times import Time, TimeShape
from epochal.protocol.topics.filter import TopicFilter

TIMES: st.SearchStrategy[Time] = st.recursive(
    st.integers(0, 2**63 - 1), lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=4
)
POSITIONS = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))
PREFIXES = st.lists(st.binary(max_size=2), max_size=3)
FILTERS = st.builds(TopicFilter, PREFIXES, PREFIXES)
CURSORS = st.builds(
    Cursor,
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=5), POSITIONS, max_size=4),
    *[st.lists(TIMES, max_size=4).map(tuple)] * 3,
    st.none() | st.lists(TIMES, max_size=4).map(tuple),
    st.none() | st.text(max_size=9) | FILTERS,
    st.lists(st.builds(NewTopics, FILTERS, st.none() | st.lists(TIMES, max_size=2).map(tuple)), max_size=2).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
GOOD = {
    "cursor": 5, "stream": "uid", "positions": {"0": [1, 5]}, "frontier": [3], "aborted": [], "untold": [4],
    "seen_from": [7], "topics": [["61"], ["6162"]], "new_topics": [[[["61"], []], [7]], [[[], []], None]],
}  # fmt: skip


@pytest.mark.rule("E16")
@given(CURSORS)
def test_a_cursor_is_read_back_as_it_was_written(cursor):
    text = cursor.to_json()
    assert "\n" not in text
    assert Cursor.from_json(text) == cursor


@given(st.text(max_size=40) | JSON.map(json.dumps))
def test_garbage_is_a_cursor_error(text):
    with pytest.raises(CursorError):
        Cursor.from_json(text)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_a_wrong_field_is_a_cursor_error_or_harmless(field, value):
    try:
        cursor = Cursor.from_json(json.dumps({**GOOD, field: value}))
    except CursorError:
        return
    assert Cursor.from_json(cursor.to_json()) == cursor


@pytest.mark.parametrize("text", ["[" * 100_000, '{"cursor": 5, "frontier": ' + "[" * 5_000 + "]" * 5_000 + "}"])
def test_nesting_without_end_is_a_cursor_error(text):
    with pytest.raises(CursorError):
        Cursor.from_json(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cursor": 0},
        {"cursor": True},
        {"stream": 7},
        {"positions": {"0": [1]}},
        {"positions": {"0": [1, True]}},
        {"positions": {"0": [1, -2]}},
        {"frontier": "abc"},
        {"frontier": ""},
        {"frontier": {}},
        {"frontier": [1.5]},
        {"aborted": None},
        {"untold": None},
        {"untold": [1.5]},
        {"seen_from": {}},
        {"seen_from": ["x"]},
        {"topics": 7},
    ],
)
def test_each_field_is_checked(wrong):
    with pytest.raises(CursorError) as caught:
        Cursor.from_json(json.dumps({**GOOD, **wrong}))
    (field,) = wrong
    assert f"'{field}' should be " in str(caught.value)
    assert len(str(caught.value)) < 250
    Cursor.from_json(json.dumps(GOOD))


@pytest.mark.parametrize(
    "new_topics",
    [None, {}, "abc", [[]], [[[["61"], []], 7]], [[[["6"], []], None]], [["61", None]], [[[[], []], [1.5]]]],
)
def test_new_topics_are_checked(new_topics):
    with pytest.raises(CursorError, match="'new_topics' should be an array of pairs"):
        Cursor.from_json(json.dumps({**GOOD, "new_topics": new_topics}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no JSON object"),
        ("[1]", "'[1]' is no JSON object"),
        ('{"x":1}', "it has no field 'cursor'"),
        ('{"cursor":5}', "it has no field 'stream'"),
        ('{"cursor":"5"}', "'cursor' should be its form, a number from 1 on, not '5'"),
        (
            '{"cursor":5,"stream":"uid","positions":[]}',
            """'positions' should be {"SEGMENT": [INCARNATION, SEQ], ...}""",
        ),
    ],
)
def test_what_is_no_cursor_is_refused_without_words_of_python(text, reason):
    with pytest.raises(CursorError) as caught:
        Cursor.from_json(text)
    assert str(caught.value).startswith(f"this is no cursor as Cursor.to_json writes it: {reason}")


@pytest.mark.parametrize("field", sorted(GOOD))
def test_each_field_must_be_there(field):
    with pytest.raises(CursorError, match=f"no field '{field}'"):
        Cursor.from_json(json.dumps({name: value for name, value in GOOD.items() if name != field}))


@pytest.mark.rule("E16")
@pytest.mark.parametrize("form", [1, 2, 3, 4, 6, 99])
def test_a_cursor_of_another_form_is_refused_by_its_form(form):
    with pytest.raises(CursorError, match=f"a cursor of form {form}; this version reads form 5: resume with"):
        Cursor.from_json(json.dumps({**GOOD, "cursor": form}))
    with pytest.raises(CursorError, match=f"a cursor of form {form};"):
        Cursor.from_json(json.dumps({"cursor": form}))


@pytest.mark.rule("E16")
def test_the_text_of_a_cursor():
    for text in map(json.dumps, (GOOD, {**GOOD, "topics": None}, {**GOOD, "topics": "ab", "new_topics": []})):
        assert json.loads(Cursor.from_json(text).to_json()) == json.loads(text)
    plain = Cursor("uid", {"0": Position(1, 5)}, (3,), (4,))
    assert plain.to_json() == (
        '{"cursor":5,"stream":"uid","positions":{"0":[1,5]},"frontier":[3],"aborted":[4],"untold":[],"seen_from":null,'
        '"topics":null,"new_topics":[]}'
    )
    everything_new = Cursor("uid", {}, (3,), new_topics=(NewTopics(TopicFilter([b"a"], [b"ab"]), (7,)),))
    assert everything_new.to_json() == (
        '{"cursor":5,"stream":"uid","positions":{},"frontier":[3],"aborted":[],"untold":[],"seen_from":null,'
        '"topics":null,"new_topics":[[[["61"],["6162"]],[7]]]}'
    )


@pytest.mark.parametrize(
    "times",
    [
        (((3, 3),), (), ()), ((3,), (-1,), ()), ((3,), (), ((4, 4),)), ((3,), (), (), ((4, 4),)),
        ((3,), (), (), None, None, (NewTopics(TopicFilter([]), ((4, 4),)),)),
    ],
)  # fmt: skip
def test_a_cursor_with_times_of_another_shape_is_refused(times):
    with pytest.raises(CursorError, match="does not fit"):
        SubscriberMachine("uid", TimeShape.parse("int"), ["0"], cursor=Cursor("uid", {"0": Position(1, 5)}, *times))
