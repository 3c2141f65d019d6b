"""A publisher: writers' sessions at one segment, the order of its events, and what subscribers may read of it."""
