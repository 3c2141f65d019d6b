"""The HTTP side of a publisher: health, metrics, events for clients without ZeroMQ, and web-hooks."""
