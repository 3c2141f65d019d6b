"""Whole epochs over HTTP: all segments merged, one epoch after the other, for clients without ZeroMQ."""
