"""The catalog on disk: the database, its schema, and its directory."""
