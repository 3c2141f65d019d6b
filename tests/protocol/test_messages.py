"""The vocabulary: plain immutable values, each with one kind on the wire."""

import pytest

from epochal.errors import HistoryTruncated, from_code
from epochal.protocol import messages as m
from epochal.protocol import wire


def test_every_message_has_exactly_one_kind():
    kinds = [kind for kind, _ in wire.KINDS.values()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == set(m.Message.__args__)


def test_messages_cannot_be_changed():
    with pytest.raises(AttributeError):
        m.Heartbeat(3).seq = 4  # type: ignore[misc]


@pytest.mark.rule("S33")
def test_positions_of_a_later_life_come_after_all_of_an_earlier_one():
    assert m.Position(1, 900) < m.Position(2, m.NOTHING_YET) < m.Position(2, 0)


def test_every_event_names_itself_and_its_predecessor():
    for kind in m.Event.__args__:
        assert kind._fields[:2] == ("seq", "prev")


def test_an_error_is_rebuilt_as_the_class_that_has_its_code_not_as_a_refinement_of_it():
    class Refined(HistoryTruncated):
        def __init__(self, first: int, last: int) -> None:
            super().__init__(f"{first} to {last}")

    assert type(from_code("history_truncated", "why")) is HistoryTruncated
    assert str(from_code(Refined(1, 2).code, "why")) == "why"
