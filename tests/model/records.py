"""The catalog: one record a segment, the newest session of each writer, and whether the stream is complete.

The rule depends only on what is stored here: a publisher without memory finds nothing else when it starts.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.clauses import Clause
from tests.model.order import NONE, Times


class Record(NamedTuple):
    """What a publisher asks the catalog to keep of its segment."""

    number: int
    reach: Times | None
    """The frontier F; None in half a record (only with `TOGETHER` left out)."""
    horizon: Times | None
    """All that the horizon H covers."""
    writers: frozenset[str]
    final: bool = False


class Asked(NamedTuple):
    """A record on its way to the catalog."""

    segment: int
    incarnation: int
    record: Record


class Answer(NamedTuple):
    """An answer on its way back: the number of the record that is stored now."""

    segment: int
    incarnation: int
    number: int


@dataclass(slots=True)
class Row:
    """A segment at the catalog."""

    reach: Times
    horizon: Times = NONE
    writers: frozenset[str] = frozenset()
    number: int = -1
    incarnation: int = 0


@dataclass(slots=True)
class Catalog:
    """The state that outlives every publisher."""

    rows: list[Row]
    off: frozenset[Clause]
    sessions: dict[str, int] = field(default_factory=dict)
    up: bool = True
    complete: bool = False

    def register(self, segment: int) -> Row:
        """A new incarnation; its numbers begin again."""
        row = self.rows[segment]
        row.incarnation, row.number = row.incarnation + 1, -1
        return row

    def store(self, asked: Asked) -> Answer | None:
        """Keep a record, unless it is late; None to a publisher that was superseded."""
        row, record = self.rows[asked.segment], asked.record
        if asked.incarnation != row.incarnation and Clause.FENCED not in self.off:
            return None
        if record.number > row.number or Clause.NUMBERED in self.off:
            row.reach = row.reach if record.reach is None else record.reach
            row.horizon = row.horizon if record.horizon is None else record.horizon
            row.writers, row.number = record.writers, record.number
        return Answer(asked.segment, asked.incarnation, row.number)
