"""The steps that bring a database to the present schema, oldest first; in the package, and run at every start."""
