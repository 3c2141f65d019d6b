"""What is particular to SQLite: how its file is opened, its form of a fenced write, and which of its errors pass.

Separate from the store because this is all that another database would need in another form.
"""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.pool import StaticPool

from epochal_catalog.domain.kind import Fence


def open_engine(path: Path, busy_timeout: float) -> Engine:
    """The database in the file at `path`; a write waits `busy_timeout` seconds for a lock of another process."""
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=StaticPool,
        connect_args={"timeout": busy_timeout, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # The driver must not begin transactions by itself: a deferred one that turns into a write fails at once when the
    # file is busy, whatever the timeout is.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def rolled_back(error: BaseException | None) -> bool:
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


def put(table: Table, fence: Fence | None) -> Insert:
    """Inserts a row, or replaces the one with its key unless the fence forbids that: then it changes no row."""
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={each.name: statement.excluded[each.name] for each in table.columns if not each.primary_key},
        where=None if fence is None else fence.condition(statement.excluded, table.c),
    )


def put_once(table: Table) -> Insert:
    """Inserts a row unless there is one with its key."""
    return insert(table).on_conflict_do_nothing()


def count(table: Table, column: Column[Any]) -> Insert:
    """Inserts a row, or adds one to the column of the row with its key."""
    return insert(table).on_conflict_do_update(
        index_elements=list(table.primary_key.columns), set_={column.name: column + 1}
    )
