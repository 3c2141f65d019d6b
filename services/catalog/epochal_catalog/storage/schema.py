"""The tables of the database, and its migration to the schema of this release.

`migrate` runs once, before anything is read, and refuses a database whose schema it does not know.
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
    inspect,
)

from epochal_catalog.errors import UnknownSchema

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
    Column("record_number", BigInteger, nullable=False),
    Column("marks", JSON, nullable=False),
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
    Column("first", Boolean, nullable=False),
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
    """Run the missing migrations, in the connection's transaction. Raises `UnknownSchema`, and has changed nothing."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_revision()
    if present is None:
        if tables := inspect(connection).get_table_names():
            raise UnknownSchema(f"the database has tables of another program, such as {min(tables)}; {_REMEDY}")
    elif present not in {script.revision for script in scripts.walk_revisions()}:
        raise UnknownSchema(
            f"the database has schema {present}, and this release of epochal-catalog knows schemas up to"
            f" {scripts.get_current_head()}; {_REMEDY}"
        )
    command.upgrade(config, "head")


_REMEDY = (
    "start the release that wrote it, or a newer one; or name an empty data directory, and declare the streams again"
)
