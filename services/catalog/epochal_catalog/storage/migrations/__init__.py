"""The migrations to the present schema, oldest first; they are part of the package, and run at every start."""
