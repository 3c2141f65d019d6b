"""Whole epochs over HTTP: all segments merged, one epoch after another, for clients without ZeroMQ."""
