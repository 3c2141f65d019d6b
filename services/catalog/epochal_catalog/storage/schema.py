"""The tables of the database, made from the records, and its migration to the schema of this release.

`migrate` runs once, before anything is read, and refuses a database whose schema it does not know.
"""

from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

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
from sqlalchemy.types import TypeEngine

from epochal_catalog.domain.kind import Column as ColumnForm
from epochal_catalog.domain.kind import Rows
from epochal_catalog.domain.kinds import KINDS
from epochal_catalog.domain.records import (
    CHANGE_ROWS,
    COUNTER_ROWS,
)
from epochal_catalog.errors import UnknownSchema

metadata = MetaData()

ROWS: tuple[Rows[Any], ...] = (
    *(kind.rows for kind in KINDS),
    CHANGE_ROWS,
    COUNTER_ROWS,
)
"""In the order of their references: a row comes after those that it refers to."""


def table_of(rows: Rows[Any], metadata: MetaData) -> Table:
    """The table of a record: a column for each field, in their order."""
    columns = [_column(rows, name, hint) for name, hint in get_type_hints(rows.record).items()]
    unique = [UniqueConstraint(*names, name=name) for name, names in rows.unique.items()]
    return Table(rows.table, metadata, *columns, *unique)


def _column(rows: Rows[Any], name: str, hint: Any) -> Column[Any]:
    form, optional = rows.columns.get(name, _PLAIN), NoneType in get_args(hint)
    of_stream = rows.of_stream and name == "uid"
    return Column(
        name,
        _type(hint, form, optional=optional),
        *([ForeignKey("streams.uid", ondelete="CASCADE")] if of_stream else []),
        primary_key=name in rows.key,
        nullable=optional,
        autoincrement=False,
        index=True if of_stream and name not in rows.key else None,
        unique=form.unique or None,
    )


def _type(hint: Any, form: ColumnForm, *, optional: bool) -> TypeEngine[Any]:
    """Text, numbers and flags are columns of these types; every other value is JSON."""
    [kind] = [item for item in get_args(hint) if item is not NoneType] if optional else [hint]
    if kind is str or form.digits:
        return Text()
    if kind is bool:
        return Boolean()
    if kind is int:
        return Integer() if form.small else BigInteger()
    return JSON(none_as_null=optional)


_PLAIN = ColumnForm()
TABLES: dict[type, Table] = {rows.record: table_of(rows, metadata) for rows in ROWS}
"""The table of each record."""


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
