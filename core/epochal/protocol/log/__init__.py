"""The log of one segment: events in memory, and the format of the files that hold them."""
