"""The tables of the database, and its migration to the schema of this release.

`migrate` runs once, before anything is read, and refuses a database that a newer release wrote.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from epochal_catalog.errors import SchemaTooNew

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

relays = Table(
    "relays",
    metadata,
    Column("id", Text, primary_key=True),
    Column("uid", Text, ForeignKey("streams.uid", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("addresses", JSON, nullable=False),
    Column("segments", JSON, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("capacity", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("path", JSON, nullable=False),
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


_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Run the missing migrations, in the connection's transaction. Raises `SchemaTooNew` for an unknown schema."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if present is not None and present not in known:
        raise SchemaTooNew(
            f"the database has schema {present}, and this release of epochal-catalog knows schemas up to"
            f" {scripts.get_current_head()}; start the release that wrote it, or a newer one"
        )
    command.upgrade(config, "head")
