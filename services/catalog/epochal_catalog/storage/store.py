"""The database: SQLite, used by one thread. Each write is one transaction, on disk before its request is answered.

Separate from the state because only the storage package uses SQL. The store checks nothing but the fences: a record
with an older token, or a number that does not rise, is refused in the transaction itself, even if the state in memory
allowed it (E12).
"""

import asyncio
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, create_engine, event, or_, select
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.pool import StaticPool

from epochal.catalog_api.kinds import fields_of
from epochal.errors import Superseded
from epochal.locks import FileLock, LockTaken
from epochal.service.filesystems import objection
from epochal_catalog.domain.records import (
    ChangeRecord,
    ChangesForgotten,
    CounterRecord,
    HorizonRecorded,
    LeaseRenewed,
    LivenessNoticed,
    RegistrationRecord,
    RegistrationRemoved,
    RelayRecord,
    RelayRemoved,
    RelayRenewed,
    SegmentRecord,
    SessionRecord,
    SessionRemoved,
    StateChange,
    StreamRecord,
    StreamRemoved,
    SubscriptionRecord,
    SubscriptionRemoved,
    SubscriptionRenewed,
)
from epochal_catalog.errors import DataDirectoryError, StoreFailed, StoreUnavailable
from epochal_catalog.storage import schema
from epochal_catalog.storage.schema import migrate


class DataDirectory:
    """The directory of the database: used by one process at a time, on a file system that is safe for a database.

    Checked before any file is opened. Holds an exclusive lock on `catalog.lock` in it while its context is entered.

    The kernel drops the lock when the process ends in any way. `trusted`: a type of FUSE file system that is accepted.
    """

    def __init__(self, path: Path, trusted: str = "") -> None:
        self.path = path
        self._trusted = trusted
        self._lock = FileLock(path / "catalog.lock", f"process {os.getpid()} on {socket.gethostname()}")

    def __enter__(self) -> Self:
        """Create, check and lock the directory. Raises `DataDirectoryError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check()
            self._lock.__enter__()
        except LockTaken as taken:
            raise DataDirectoryError(
                f"the data directory {self.path} is in use by {taken.holder}; stop it, or give another directory"
                " (--data)"
            ) from None
        except OSError as error:
            raise DataDirectoryError(f"the data directory {self.path} cannot be used: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the lock."""
        self._lock.__exit__()

    def _check(self) -> None:
        setting = "EPOCHAL_CATALOG_TRUST_FILE_SYSTEM"
        problem = objection(self.path, trusted=self._trusted, setting=setting, danger="SQLite can lose or mix data")
        if problem is not None:
            raise DataDirectoryError(problem)


T = TypeVar("T")

_TABLES: dict[type[Any], Table] = {
    StreamRecord: schema.streams,
    SegmentRecord: schema.segments,
    RegistrationRecord: schema.registrations,
    SessionRecord: schema.sessions,
    SubscriptionRecord: schema.subscriptions,
    RelayRecord: schema.relays,
    ChangeRecord: schema.changes,
    CounterRecord: schema.counters,
}
"""In the order of their references: a row comes after those that it refers to."""

_RISING = {
    StreamRecord: ("generation", False),
    SegmentRecord: ("token", False),
    RegistrationRecord: ("token", True),
    SessionRecord: ("number", True),
    SubscriptionRecord: ("token", False),
    ChangeRecord: ("revision", True),
    CounterRecord: ("value", True),
}
"""The column that fences each record, and whether it must rise with every write (True) or may stay equal.

A relay owns nothing, so nothing fences it."""


class CatalogStore:
    """The file `catalog.sqlite` in the data directory. All methods run on its one thread."""

    def __init__(self, directory: Path, busy_timeout: float) -> None:
        self._path = directory / "catalog.sqlite"
        self._busy_timeout = busy_timeout
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="catalog-writer")
        self._engine: Engine | None = None
        self._closed = False
        self.identity = ""
        """Identifies the database, once it is open: a copy has the same, a new database always another."""

    async def open(self) -> list[StateChange]:
        """Migrate and read everything. Raises `UnknownSchema`, `StoreUnavailable`."""
        return await self._run(self._open)

    async def write(self, changes: Sequence[StateChange]) -> None:
        """Write all changes or none; they are on disk when this returns.

        Raises `Superseded` when a fence refuses one, `StoreUnavailable` when the file is locked or full, and
        `StoreFailed` when it is not known what the file holds now.
        """
        await self._run(lambda: self._write(changes))

    async def check(self, *, writing: bool) -> None:
        """Take the file's lock and release it; when `writing`, write a number too. Raises what `write` raises.

        So another process that holds the lock is noticed even when no request comes.
        """
        await self._run(lambda: self._check(writing))

    async def close(self) -> None:
        """Close the file and end the thread; pending writes are done first. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            await self._run(self._close)
            self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except IntegrityError:
            raise  # a bug in this program, not a fault of the file
        except DatabaseError as error:
            kind = StoreUnavailable if _passing(error.orig) else StoreFailed
            raise kind(f"the database {self._path} cannot be used now: {error.orig}") from error

    def _open(self) -> list[StateChange]:
        self._engine = create_engine(
            f"sqlite:///{self._path}",
            poolclass=StaticPool,
            connect_args={"timeout": self._busy_timeout, "check_same_thread": False},
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin_immediate)
        with self._engine.begin() as connection:
            migrate(connection)
            self.identity = _identify(connection)
            return list(_read(connection))

    def _write(self, changes: Sequence[StateChange]) -> None:
        assert self._engine is not None, "open() comes first"
        with self._engine.begin() as connection:
            for change in changes:
                _write_one(connection, change)

    def _check(self, writing: bool) -> None:
        assert self._engine is not None, "open() comes first"
        with self._engine.begin() as connection:
            if writing:  # on a full disk, a lock succeeds and only a write fails
                _count_check(connection)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


_IDENTITY = "identity"
"""The name of the counter that never changes."""


def _passing(error: BaseException | None) -> bool:
    """Whether SQLite is known to have rolled back: busy, locked, read-only, full, or the file could not be opened."""
    code = getattr(error, "sqlite_errorcode", None)
    kinds = (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    )
    return code is not None and code & 0xFF in kinds


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # The driver must not begin transactions by itself: a deferred one that turns into a write fails at once when the
    # file is busy, whatever the timeout is.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _read(connection: Connection) -> Iterable[StateChange]:
    for kind, table in _TABLES.items():
        order = [table.c.token] if kind is RegistrationRecord else list(table.primary_key.columns)
        rows = connection.execute(select(table).order_by(*order)).mappings().all()
        if kind is CounterRecord:
            rows = [row for row in rows if row["name"] != _IDENTITY]
        records = [_record(kind, dict(row)) for row in rows]
        if kind is SegmentRecord:  # by number: in the database, the bounds are text
            records.sort(key=lambda segment: (segment.uid, segment.lo))
        yield from records


def _record(kind: type[Any], row: dict[str, Any]) -> Any:
    if kind is SegmentRecord:
        row |= {
            "lo": int(row["lo"]),
            "hi": int(row["hi"]),
            "writers": tuple(row["writers"]),
            "marks": tuple(row["marks"]),
        }
    return kind(**row)


def _row(record: Any) -> dict[str, Any]:
    row = fields_of(record)
    if isinstance(record, SegmentRecord):
        row |= {
            "lo": str(record.lo),
            "hi": str(record.hi),
            "writers": list(record.writers),
            "marks": list(record.marks),
        }
    return row


def _write_one(connection: Connection, change: StateChange) -> None:
    match change:
        case LeaseRenewed() | SubscriptionRenewed() | RelayRenewed() | LivenessNoticed():
            return  # leases depend on a monotonic clock, which does not survive a restart
        case SubscriptionRemoved(key):
            connection.execute(schema.subscriptions.delete().where(schema.subscriptions.c.id == key))
        case RelayRemoved(key):
            connection.execute(schema.relays.delete().where(schema.relays.c.id == key))
        case ChangesForgotten(before):
            connection.execute(schema.changes.delete().where(schema.changes.c.revision < before))
        case StreamRemoved(uid):
            connection.execute(schema.streams.delete().where(schema.streams.c.uid == uid))
        case RegistrationRemoved(publisher, token):
            table = schema.registrations
            connection.execute(table.delete().where(table.c.publisher == publisher, table.c.token == token))
        case SessionRemoved(uid, writer, number):
            table = schema.sessions
            mine = and_(table.c.uid == uid, table.c.writer == writer, table.c.number == number)
            connection.execute(table.delete().where(mine))
        case HorizonRecorded(segment):
            _put(connection, segment)
        case _:
            _put(connection, change)


def _put(connection: Connection, record: Any) -> None:
    kind = type(record)
    if connection.execute(_PUT[kind], _row(record)).rowcount != 1:
        name, column = _TABLES[kind].name, _RISING[kind][0]
        raise Superseded(f"{name} already holds what fences this write off (a newer {column}, or completion)")


def _statement(kind: type[Any]) -> Insert:
    """Inserts a record of this kind, or replaces the one with its key unless its fence forbids that."""
    table, statement = _TABLES[kind], insert(_TABLES[kind])
    if kind not in _RISING:
        return _replacing(table, statement, None)
    column, strictly = _RISING[kind]
    new, old = statement.excluded[column], table.c[column]
    fence = new > old if strictly else new >= old
    if kind is StreamRecord:  # completion is recorded once, for ever (E7)
        done = schema.streams.c.completed
        fence = and_(fence, or_(done.is_(None), done == statement.excluded.completed))
    if kind is SessionRecord:  # the same number again only to release it (E46)
        fence = or_(fence, and_(new == old, statement.excluded.released == new))
    if kind is SegmentRecord:  # a late record of an incarnation never replaces a newer one (E11)
        fence = or_(new > old, and_(new == old, statement.excluded.record_number >= table.c.record_number))
    return _replacing(table, statement, fence)


def _replacing(table: Table, statement: Insert, fence: ColumnElement[bool] | None) -> Insert:
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={each.name: statement.excluded[each.name] for each in table.columns if not each.primary_key},
        where=fence,
    )


_PUT = {kind: _statement(kind) for kind in _TABLES}
"""Made once, so that SQLAlchemy compiles them once: compiling a statement takes ten times as long as running it."""


def _identify(connection: Connection) -> str:
    """The number that identifies the database for ever; a new database gets one here."""
    statement = insert(schema.counters).values(name=_IDENTITY, value=secrets.randbits(62))
    connection.execute(statement.on_conflict_do_nothing())
    number = connection.scalar(select(schema.counters.c.value).where(schema.counters.c.name == _IDENTITY))
    return f"{number:016x}"


def _count_check(connection: Connection) -> None:
    statement = insert(schema.counters).values(name="checks", value=1)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["name"], set_={"value": schema.counters.c.value + 1})
    )
