"""Many streams in one process: the orders that it gets, and how it keeps each stream running."""
