"""A subscriber: where it begins, how it follows each segment, and which epochs it may deliver."""
