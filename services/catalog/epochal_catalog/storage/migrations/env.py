"""Runs the migrations on the connection that the store hands over.

Alembic executes this file by its name.
"""

from alembic import context

from epochal_catalog.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
