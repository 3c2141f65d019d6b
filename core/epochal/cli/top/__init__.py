"""What `epochal top` decides: which stream is worst, what a key does, and what a screen of some size shows."""
