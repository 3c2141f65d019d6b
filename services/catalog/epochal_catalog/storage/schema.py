"""Migrates a database to the schema of this release, and refuses one that a newer release wrote.

It runs once, before anything is read.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from epochal_catalog.errors import SchemaTooNew

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
