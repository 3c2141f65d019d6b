"""`epochal doctor`: what is looked at, and what is said of it."""
