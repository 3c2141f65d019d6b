"""A kind of record: its table, what fences it, how memory keeps it, and what watchers see of it.

Each kind is declared once, in its module of `domain.kinds`. The database's tables, the state in memory and the history
of changes are made from these declarations, so none of them lists the kinds again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from epochal_catalog.domain.reads import Key, Reading

Json: TypeAlias = Any
"""A value as JSON gives it. Times are kept in this form: an int or nested lists."""
Names: TypeAlias = Callable[[str], str]
"""From the uid of a stream to its `namespace/name`."""
Event: TypeAlias = tuple[str, dict[str, Json]]
"""The name of a record in `/v1/watch`, and what is shown of it."""


class Record:
    """One row, as a dataclass whose fields are the columns. As a change: it is stored in place of the row before."""

    __slots__ = ()


R = TypeVar("R")


class Memory(Generic[R]):
    """What the state remembers of one kind. `version` rises when an answer may differ though no record has changed.

    `put`, `remove` and `renew` return the name of the stream whose look-ups may be answered differently, None for none.
    A rule that looks into a memory has read all of its kind (`reads`), unless the memory `notes_reads` itself.
    """

    version = 0
    notes_reads = False

    def __len__(self) -> int:
        """How many records there are."""
        raise NotImplementedError

    def load(self, record: R, now: float) -> None:
        """Take over a record that a restart found on disk."""
        raise NotImplementedError

    def settle(self, shown: Mapping[str, dict[str, Json] | None]) -> None:
        """All is loaded. `shown`: by name, what watchers were shown last, of the records with a change that is kept."""

    def put(self, record: R, now: float) -> str | None:
        """Take over a record that was written now."""
        raise NotImplementedError

    def remove(self, record: R) -> str | None:
        """Forget a record."""
        raise NotImplementedError

    def remove_stream(self, uid: str) -> None:
        """Forget all records of a stream that was deleted; the database deletes them by itself."""
        raise NotImplementedError

    def renew(self, key: Any, report: Any, now: float) -> str | None:
        """Renew a lease, with what its owner reports."""
        raise NotImplementedError

    def sweep(self, now: float, stall: float) -> int:
        """Let overdue leases lapse; returns how many did."""
        return 0

    def lapsed(self) -> Iterable[R]:
        """The records to remove because their lease has lapsed."""
        return ()

    def notices(self) -> "Sequence[Noticed]":
        """What watchers are to be notified of though it is not stored."""
        return ()

    def notified(self, notice: "Noticed") -> None:
        """Watchers were notified."""

    def version_of(self, key: Key) -> object:
        """The version of what was read, by a key that this memory noted."""
        raise NotImplementedError


M = TypeVar("M", bound=Memory[Any])


@dataclass(frozen=True, slots=True)
class Fence:
    """When a row may replace the one with its key: only if `column` rises, or, unless `strict`, stays equal.

    `allows` replaces this rule by another: from the columns of the new row and of the old one to a condition, as
    SQLAlchemy builds conditions with `>`, `&` and `|`. The database checks it in the transaction that writes the row.
    """

    column: str
    strict: bool = False
    allows: Callable[[Any, Any], Any] | None = None

    def condition(self, new: Any, old: Any) -> Any:
        """The condition on the columns of both rows."""
        if self.allows is not None:
            return self.allows(new, old)
        after, before = getattr(new, self.column), getattr(old, self.column)
        return after > before if self.strict else after >= before


@dataclass(frozen=True, slots=True)
class Column:
    """What a field's type does not say of its column.

    `digits`: a whole number is stored as text, because it may exceed 63 bits.
    """

    digits: bool = False
    small: bool = False
    unique: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Generic[R]):
    """The table of a record; the types of its columns follow from the types of the record's fields.

    `of_stream`: the column `uid` refers to the stream, whose deletion deletes the row. `order`: the fields by which
    rows are read, where that is not the key. `unique`: columns that are unique together, by the constraint's name.
    """

    record: type[R]
    table: str
    key: tuple[str, ...]
    fence: Fence | None = None
    of_stream: bool = False
    order: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    unique: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[R, M]):
    """One kind of record. `name` is that of its changes in `/v1/watch`.

    `memory` gets the settings of the catalog, and what notes the reads; or it is the kind whose memory keeps these
    records too.
    """

    name: str
    rows: Rows[R]
    memory: "Callable[[Any, Reading], M] | Kind[Any, M]"
    event: Callable[[R, Names], Event]

    def removed(self, record: R) -> "Removed":
        """The change that removes a record."""
        return Removed(self, record)


@dataclass(frozen=True, slots=True)
class Removed:
    """A record is removed: its row, what memory knows of it, and what watchers were shown."""

    kind: Kind[Any, Any]
    record: Any


@dataclass(frozen=True, slots=True)
class Renewed:
    """The owner of an entry is alive. Kept in memory only, like its report, because leases do not survive a restart."""

    kind: Kind[Any, Any]
    key: Any
    report: Any = None


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something is not as watchers were shown it, such as a lease. It is not stored, but they are notified.

    `shown`: the fields that differ from what `Kind.event` gives.
    """

    kind: Kind[Any, Any]
    record: Any
    shown: Mapping[str, Json]
