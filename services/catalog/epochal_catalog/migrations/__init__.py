"""The steps that bring a database to the present schema, oldest first; shipped in the package and run at every start."""
