"""A writer: its session at every segment, its capabilities, and appends that are numbered and acknowledged."""
