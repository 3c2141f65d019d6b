"""Many streams in one process: which, their common beats, and the line to who gives them out."""
