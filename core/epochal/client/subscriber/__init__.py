"""Subscriptions: what a program reads, and a connection to the publisher of each segment."""
