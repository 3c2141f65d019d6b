"""A relay: a subscriber of each segment that publishes again what it is sent, to many.

`run` is what it has of a segment, as its readers see it; `segment` decides what it asks for, and who is answered when.

Sources: rules N18, E24, F13-F17.
"""
