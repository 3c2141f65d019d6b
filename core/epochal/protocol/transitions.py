"""The life of a state machine as a table: which event leads from which state to which.

A machine with such a table keeps its state in one attribute and sets it in one method, with the result of `after`. An
event that the table does not have in that state is a defect of the machine. The page that draws the table and the tests
that look for transitions never taken read it from here, so neither can differ from the code.

Source: the state tables of h11, a Python library for HTTP/1.1.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from epochal.errors import LocalProtocolError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class Transitions(Generic[S, E]):
    """`table` has, for each state but the last ones, its events and where each leads; a machine begins in `start`.

    A lookup costs two dictionary reads. A message that changes no state needs none.

    >>> class Door(StrEnum):
    ...     OPEN = "open"
    ...     SHUT = "shut"
    >>> class Act(StrEnum):
    ...     PUSH = "somebody pushes it"
    ...     PULL = "somebody pulls it"
    >>> door = Transitions(Door.SHUT, {Door.SHUT: {Act.PULL: Door.OPEN}, Door.OPEN: {Act.PUSH: Door.SHUT}})
    >>> door.after(door.start, Act.PULL).value
    'open'
    >>> door.after(Door.SHUT, Act.PUSH)
    Traceback (most recent call last):
    ...
    epochal.errors.LocalProtocolError: no transition from state 'shut' by the event 'somebody pushes it'
    """

    __slots__ = ("start", "table", "watch")

    def __init__(self, start: S, table: Mapping[S, Mapping[E, S]]) -> None:
        self.start = start
        self.table = {state: dict(events) for state, events in table.items()}
        self.watch: Callable[[S, E], object] | None = None
        """Called with each state and event that `after` has found in the table: for tests that collect them."""

    def after(self, state: S, event: E) -> S:
        """The state in which `event` leaves a machine that was in `state`.

        Raises `LocalProtocolError` where the table has no such transition.
        """
        after = self.table.get(state, {}).get(event)
        if after is None:
            raise LocalProtocolError(f"no transition from state {state.value!r} by the event {event.value!r}")
        if self.watch is not None:
            self.watch(state, event)
        return after

    def rows(self) -> list[tuple[S, E, S]]:
        """All transitions, in the order of the table: state, event, next state."""
        return [(state, event, after) for state, events in self.table.items() for event, after in events.items()]
