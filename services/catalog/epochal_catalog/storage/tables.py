"""The tables of the database: one for each kind of record, with the record's field names.

The migrations must build exactly these tables. Bounds of key ranges are text, because 2^64 does not fit an integer
column.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()


streams = Table(
    "streams",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("created", Text, nullable=False),
    Column("completed", Text),
    UniqueConstraint("namespace", "name", name="one_live_stream_a_name"),
)

segments = Table(
    "segments",
    metadata,
    Column("uid", Text, ForeignKey("streams.uid", ondelete="CASCADE"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("lo", Text, nullable=False),
    Column("hi", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("lower", JSON(none_as_null=True)),
    Column("writers", JSON, nullable=False),
    Column("finishing", Boolean, nullable=False),
    Column("finishing_number", BigInteger, nullable=False),
    Column("horizon", JSON(none_as_null=True)),
    Column("record_number", BigInteger, nullable=False, server_default="-1"),
    Column("marks", JSON, nullable=False, server_default="[]"),
)

registrations = Table(
    "registrations",
    metadata,
    Column("publisher", Text, primary_key=True),
    Column("token", BigInteger, nullable=False, unique=True),
    Column("instance", Text, nullable=False),
    Column("stream", Text, nullable=False),
    Column("uid", Text, nullable=False),
    Column("segments", JSON, nullable=False),
    Column("addresses", JSON, nullable=False),
    Column("since", Text, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("uid", Text, ForeignKey("streams.uid", ondelete="CASCADE"), primary_key=True),
    Column("writer", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("first", Boolean, nullable=False, server_default="0"),
    Column("released", BigInteger),
)

subscriptions = Table(
    "subscriptions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("uid", Text, ForeignKey("streams.uid", ondelete="CASCADE"), nullable=False, index=True),
    Column("subscriber", Text, nullable=False),
    Column("since", Text, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("op", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("object", JSON(none_as_null=True)),
)

counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
