"""The database: all or nothing, fences inside the transaction, and the ways in which a file can fail."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, event
from tests.patience import PATIENCE

from epochal.errors import Superseded
from epochal_catalog.domain.kinds.sessions import SESSIONS, SessionRecord
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS, SubscriptionRecord
from epochal_catalog.domain.records import CounterRecord, StateChange
from epochal_catalog.domain.registrations import PUBLISHERS, RegistrationRecord
from epochal_catalog.domain.stream_entries import STREAMS, HorizonRecorded, SegmentRecord, StreamRecord
from epochal_catalog.errors import StoreFailed, StoreUnavailable, UnknownSchema
from epochal_catalog.storage import schema
from epochal_catalog.storage.store import CatalogStore

STREAM = StreamRecord("u", "demo", "s", 1, {"kind": "Stream"}, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
SEGMENT = SegmentRecord(
    "u", "0", 0, 2**64, lower=[[1, 2]], writers=("a", "b"), token=3, finishing=True, horizon=[[2, 2]], record_number=5,
    marks=("enough", "opened:a"),
)  # fmt: skip
REGISTRATION = RegistrationRecord("p", 3, "i", "demo/s", "u", {"0": 1}, {"events": "tcp://h:1"}, "now")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CatalogStore]:
    store = CatalogStore(tmp_path, busy_timeout=0.05)
    assert await store.open() == []
    yield store
    await store.close()


async def reopened(store: CatalogStore, path: Path) -> list[Any]:
    await store.close()
    again = CatalogStore(path, busy_timeout=0.05)
    records = await again.open()
    await again.close()
    return records


async def test_what_was_written_is_read_again(store: CatalogStore, tmp_path: Path) -> None:
    records: list[StateChange] = [
        STREAM,
        SEGMENT,
        REGISTRATION,
        SessionRecord("u", "w/1", 2**62),
        CounterRecord("token", 3),
    ]
    await store.write(records)
    assert await reopened(store, tmp_path) == records


async def test_segments_come_in_the_order_of_their_ranges(store: CatalogStore, tmp_path: Path) -> None:
    segments = [SegmentRecord("u", str(index), index, index + 1) for index in range(12)]
    await store.write([STREAM, *reversed(segments)])
    assert (await reopened(store, tmp_path))[1:] == segments


async def test_a_removed_stream_takes_its_rows_along(store: CatalogStore, tmp_path: Path) -> None:
    await store.write([STREAM, SEGMENT, SessionRecord("u", "w", 1), REGISTRATION])
    await store.write([STREAMS.removed(STREAM), PUBLISHERS.removed(REGISTRATION)])
    assert await reopened(store, tmp_path) == []


@pytest.mark.rule("E6", "E7", "E11", "E12")
@pytest.mark.parametrize(
    "stale",
    [
        replace(SEGMENT, token=2),
        replace(REGISTRATION, token=3, instance="other"),
        replace(SEGMENT, record_number=4),
        SessionRecord("u", "w", 1),
        CounterRecord("token", 3),
        replace(STREAM, generation=2, completed=None),
    ],
)
async def test_a_fence_refuses_an_older_write_and_all_that_came_with_it(
    store: CatalogStore, tmp_path: Path, stale: Any
) -> None:
    before: list[StateChange] = [STREAM, SEGMENT, REGISTRATION, SessionRecord("u", "w", 1), CounterRecord("token", 3)]
    await store.write(before)
    with pytest.raises(Superseded):
        await store.write([CounterRecord("revision", 9), stale])
    assert await reopened(store, tmp_path) == before


@pytest.mark.rule("E6", "E46")
async def test_a_session_is_written_again_only_to_release_it(store: CatalogStore, tmp_path: Path) -> None:
    session = SessionRecord("u", "w", 7, first=True)
    await store.write([STREAM, session])
    released = replace(session, released=7)
    await store.write([released])
    with pytest.raises(Superseded):
        await store.write([session])
    with pytest.raises(Superseded):
        await store.write([replace(session, number=6, released=6)])
    assert await reopened(store, tmp_path) == [STREAM, released]


@pytest.mark.rule("E6", "E12")
async def test_a_removal_of_an_older_record_leaves_the_newer_one(store: CatalogStore, tmp_path: Path) -> None:
    session = SessionRecord("u", "w", 7, first=True)
    subscription = SubscriptionRecord("r", 7, "u", "reader", "now")
    await store.write([STREAM, session, subscription])
    older = [SESSIONS.removed(replace(session, number=6)), SUBSCRIPTIONS.removed(replace(subscription, token=6))]
    await store.write([*older, SESSIONS.removed(replace(session, writer="x"))])
    assert await reopened(store, tmp_path) == [STREAM, session, subscription]


@pytest.mark.rule("E6", "S29")
async def test_a_removal_removes_the_record(store: CatalogStore, tmp_path: Path) -> None:
    session = SessionRecord("u", "w", 7, first=True)
    subscription = SubscriptionRecord("r", 7, "u", "reader", "now")
    await store.write([STREAM, session, subscription])
    await store.write([SESSIONS.removed(session), SUBSCRIPTIONS.removed(subscription)])
    assert await reopened(store, tmp_path) == [STREAM]


@pytest.mark.rule("E11")
async def test_a_new_incarnation_counts_its_records_from_the_beginning(store: CatalogStore, tmp_path: Path) -> None:
    await store.write([STREAM, SEGMENT])
    newer = replace(SEGMENT, token=4, record_number=-1)
    await store.write([HorizonRecorded(newer)])
    await store.write([HorizonRecorded(newer)])  # the same again is no step back
    assert await reopened(store, tmp_path) == [STREAM, newer]


async def test_the_file_is_safe_against_loss_of_power(store: CatalogStore, tmp_path: Path) -> None:
    assert store._engine is not None
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


async def test_every_write_takes_the_lock_when_it_begins(store: CatalogStore) -> None:
    begun: list[str] = []
    assert store._engine is not None
    event.listen(store._engine, "before_cursor_execute", lambda *seen: begun.append(seen[2]))
    await store.write([STREAM])
    assert begun[0] == "BEGIN IMMEDIATE"  # else a read that turns into a write fails at once on a busy file


async def test_a_file_locked_by_a_stray_writer_is_waited_for_then_refused(store: CatalogStore, tmp_path: Path) -> None:
    stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
    stray.execute("BEGIN IMMEDIATE").close()
    with pytest.raises(StoreUnavailable) as caught:
        await store.write([STREAM])
    assert not isinstance(caught.value, StoreFailed)
    stray.execute("ROLLBACK").close()
    stray.close()
    await store.write([STREAM])
    assert await reopened(store, tmp_path) == [STREAM]


async def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"x" * 4096)
    store = CatalogStore(tmp_path, 0.05)
    with pytest.raises(StoreFailed, match="not a database"):
        await store.open()
    await store.close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "schema 9999"),  # of a newer release
        ("UPDATE alembic_version SET version_num = '0005'", "schema 0005"),  # of one before 0.1.0
        ("DROP TABLE alembic_version", "tables of another program, such as changes"),
    ],
)
async def test_an_unknown_schema_is_refused_and_left_alone(
    store: CatalogStore, tmp_path: Path, statement: str, reason: str
) -> None:
    await store.write([STREAM])
    await store.close()
    file = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
    file.execute(statement).close()
    found = list(file.iterdump())
    unknown = CatalogStore(tmp_path, 0.05)
    with pytest.raises(UnknownSchema, match=rf"{reason}.* name an empty data directory"):
        await unknown.open()
    await unknown.close()
    assert list(file.iterdump()) == found
    file.close()


async def test_the_migrations_build_what_the_tables_declare(store: CatalogStore, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


@pytest.mark.rule("S26")
async def test_memory_is_never_ahead_of_the_disk(start: Any, tmp_path: Path, document: Any) -> None:
    async with start(busy_timeout=0.05) as client:
        await client.apply()
        stray = sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)
        stray.execute("BEGIN IMMEDIATE").close()
        refused = [
            await client("PUT", "/v1/streams/demo/other", document("demo/other")),
            await client("DELETE", "/v1/streams/demo/flights"),
            await client.session_of("w"),
        ]
        assert [(answer.status, answer.code) for answer in refused] == [(503, "store_unavailable")] * 3
        assert "Retry-After" in refused[0].headers
        assert (await client("GET", "/readyz")).status == 503
        listed = (await client("GET", "/v1/streams")).body
        assert [item["name"] for item in listed["items"]] == ["flights"]
        stray.execute("ROLLBACK").close()
        stray.close()
        async with asyncio.timeout(PATIENCE):  # the catalog tries the file by itself
            while (await client("GET", "/readyz")).status != 200:
                pass
        assert (await client.session_of("w")).body["session"] == 1
