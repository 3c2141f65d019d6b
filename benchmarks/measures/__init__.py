"""One module a measure; each has `measure(bench)`, which returns its tables."""
