"""Which transitions of the machines' state tables a run takes, and which ones no run of several took."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from epochal.protocol.publisher.completion import COMPLETION_TRANSITIONS
from epochal.protocol.publisher.writer_state import PRESENCE_TRANSITIONS
from epochal.protocol.subscriber.follower_states import FOLLOWER_TRANSITIONS
from epochal.protocol.transitions import Transitions
from epochal.protocol.writer.session_states import WRITER_TRANSITIONS

TABLES: dict[str, Transitions[Any, Any]] = {
    "follower": FOLLOWER_TRANSITIONS,
    "writer": WRITER_TRANSITIONS,
    "presence": PRESENCE_TRANSITIONS,
    "completion": COMPLETION_TRANSITIONS,
}
"""The tables that are watched."""


class Transition(NamedTuple):
    """One row of a table, by names: values of the machine's enumerations would be printed as sentences."""

    machine: str
    state: str
    event: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.state} by {self.event}"


@contextmanager
def watched() -> Iterator[set[Transition]]:
    """Yields a set that grows by all transitions that are taken inside."""
    taken: set[Transition] = set()
    for machine, table in TABLES.items():
        table.watch = _adding(taken, machine)
    try:
        yield taken
    finally:
        for table in TABLES.values():
            table.watch = None


def _adding(taken: set[Transition], machine: str) -> Callable[[StrEnum, StrEnum], None]:
    return lambda state, event: taken.add(Transition(machine, state.name, event.name))


def never_taken(taken: Iterable[Transition]) -> list[Transition]:
    """The rows of all tables that are not in `taken`, in the order of the tables."""
    known = frozenset(taken)
    rows = [Transition(machine, state.name, event.name)
            for machine, table in TABLES.items() for state, event, _ in table.rows()]  # fmt: skip
    return [row for row in rows if row not in known]
