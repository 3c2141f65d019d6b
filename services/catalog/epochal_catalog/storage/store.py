"""The database: SQLite, used by one thread. Each write is one transaction, on disk before its request is answered.

Separate from the state because only the storage package uses SQL. The store checks nothing but the fences: a record
with an older token, or a number that does not rise, is refused in the transaction itself, even if the state in memory
allowed it (E12 fencing).
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar, get_origin, get_type_hints

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DatabaseError, IntegrityError

from epochal.catalog_api.kinds import fields_of
from epochal.errors import Superseded
from epochal.locks import FileLock, LockTaken
from epochal.service.filesystems import objection
from epochal_catalog.domain.kind import Noticed, Record, Removed, Renewed, Rows
from epochal_catalog.domain.records import ChangeRecord, ChangesForgotten, CounterRecord, StateChange
from epochal_catalog.domain.registrations import SegmentsReported
from epochal_catalog.domain.stream_entries import HorizonRecorded
from epochal_catalog.errors import DataDirectoryError, StoreFailed, StoreUnavailable
from epochal_catalog.storage import schema, sqlite
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
            kind = StoreUnavailable if sqlite.rolled_back(error.orig) else StoreFailed
            raise kind(f"the database {self._path} cannot be used now: {error.orig}") from error

    def _open(self) -> list[StateChange]:
        self._engine = sqlite.open_engine(self._path, self._busy_timeout)
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


_COUNTERS = schema.TABLES[CounterRecord]
_IDENTITY = "identity"
"""The name of the counter that never changes."""


def _read(connection: Connection) -> Iterable[Record]:
    for rows in schema.ROWS:
        table = schema.TABLES[rows.record]
        found = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        read = _READERS[rows.record]
        records = [read({**row}) for row in found]
        if rows.record is CounterRecord:
            records = [record for record in records if record.name != _IDENTITY]
        if rows.order:
            records.sort(key=attrgetter(*rows.order))
        yield from records


def _reader(rows: Rows[Any]) -> Callable[[dict[str, Any]], Any]:
    """What makes a record from a row."""
    tuples = [name for name, hint in get_type_hints(rows.record).items() if get_origin(hint) is tuple]
    digits = [name for name, column in rows.columns.items() if column.digits]

    def read(row: dict[str, Any]) -> Any:
        row |= {name: tuple(row[name]) for name in tuples} | {name: int(row[name]) for name in digits}
        return rows.record(**row)

    return read


def _row(rows: Rows[Any], record: Any) -> dict[str, Any]:
    values = fields_of(record)
    values.update({name: str(values[name]) for name, column in rows.columns.items() if column.digits})
    return values


def _write_one(connection: Connection, change: StateChange) -> None:
    match change:
        case Renewed() | SegmentsReported() | Noticed():
            return  # leases depend on a monotonic clock, which does not survive a restart; reports come again
        case Removed(kind, record):
            _delete(connection, kind.rows, record)
        case ChangesForgotten(before):
            table = schema.TABLES[ChangeRecord]
            connection.execute(table.delete().where(table.c.revision < before))
        case HorizonRecorded(segment):
            _put(connection, segment)
        case _:
            _put(connection, change)


def _delete(connection: Connection, rows: Rows[Any], record: Any) -> None:
    """Delete a record's row, unless a newer record has replaced it."""
    table, names = schema.TABLES[rows.record], list(rows.key)
    if rows.fence is not None:
        names.append(rows.fence.column)
    connection.execute(table.delete().where(*(table.c[name] == getattr(record, name) for name in names)))


def _put(connection: Connection, record: Any) -> None:
    rows = _ROWS[type(record)]
    if connection.execute(_PUT[type(record)], _row(rows, record)).rowcount != 1:
        assert rows.fence is not None, "a row without a fence is always written"
        raise Superseded(
            f"{rows.table} already holds what fences this write off (a newer {rows.fence.column}, or completion)"
        )


_ROWS = {rows.record: rows for rows in schema.ROWS}
_READERS = {rows.record: _reader(rows) for rows in schema.ROWS}
_PUT = {rows.record: sqlite.put(schema.TABLES[rows.record], rows.fence) for rows in schema.ROWS}
"""Made once, so that SQLAlchemy compiles them once: compiling a statement takes ten times as long as running it."""


def _identify(connection: Connection) -> str:
    """The number that identifies the database for ever; a new database gets one here."""
    connection.execute(sqlite.put_once(_COUNTERS), {"name": _IDENTITY, "value": secrets.randbits(62)})
    number = connection.scalar(select(_COUNTERS.c.value).where(_COUNTERS.c.name == _IDENTITY))
    return f"{number:016x}"


def _count_check(connection: Connection) -> None:
    connection.execute(sqlite.count(_COUNTERS, _COUNTERS.c.value), {"name": "checks", "value": 1})
