"""A relay: it subscribes to each segment once, and publishes what it receives to many subscribers.

`run` is the part of a segment that it serves; `segment` decides what it asks for upstream, and when it answers whom.

Sources: rules N18, E24, F13-F17.
"""
