"""The relay: a process that follows all segments of one stream once, and serves many readers."""
