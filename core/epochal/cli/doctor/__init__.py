"""`epochal doctor`: what is checked, and what is reported about it."""
