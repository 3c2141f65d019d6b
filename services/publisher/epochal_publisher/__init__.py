"""The publisher: the process that owns segments of a stream and serves writers and subscribers directly."""
