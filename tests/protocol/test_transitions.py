"""A table of states and events: what it has, what it refuses, and who sees what was taken."""

from enum import StrEnum

import pytest

from epochal.errors import LocalProtocolError
from epochal.protocol.transitions import Transitions


class State(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    OVER = "over"


class Event(StrEnum):
    ASKED = "a question comes"
    ANSWERED = "it is answered"
    CLOSED = "the connection ends"


def transitions() -> Transitions[State, Event]:
    return Transitions(
        State.IDLE,
        {
            State.IDLE: {Event.ASKED: State.BUSY, Event.CLOSED: State.OVER},
            State.BUSY: {Event.ASKED: State.BUSY, Event.ANSWERED: State.IDLE, Event.CLOSED: State.OVER},
        },
    )


def test_an_event_leads_to_the_state_that_the_table_says() -> None:
    table = transitions()
    assert table.after(table.start, Event.ASKED) is State.BUSY
    assert table.after(State.BUSY, Event.ANSWERED) is State.IDLE


@pytest.mark.parametrize("state", [State.IDLE, State.OVER])
def test_an_event_that_the_table_does_not_have_there_is_an_error_of_this_side(state: State) -> None:
    with pytest.raises(LocalProtocolError, match=f"no transition from state '{state}' by the event 'it is answered'"):
        transitions().after(state, Event.ANSWERED)


def test_the_rows_are_those_of_the_table_in_its_order() -> None:
    assert transitions().rows() == [
        (State.IDLE, Event.ASKED, State.BUSY),
        (State.IDLE, Event.CLOSED, State.OVER),
        (State.BUSY, Event.ASKED, State.BUSY),
        (State.BUSY, Event.ANSWERED, State.IDLE),
        (State.BUSY, Event.CLOSED, State.OVER),
    ]


def test_transitions_that_are_taken_can_be_watched_and_refused_ones_are_not_among_them() -> None:
    table, taken = transitions(), list[tuple[State, Event]]()
    table.watch = lambda state, event: taken.append((state, event))
    table.after(State.IDLE, Event.ASKED)
    with pytest.raises(LocalProtocolError):
        table.after(State.IDLE, Event.ANSWERED)
    assert taken == [(State.IDLE, Event.ASKED)]
