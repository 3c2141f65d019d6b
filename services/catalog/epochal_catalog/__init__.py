"""The catalog: knows streams, segments, publishers and their addresses, and the sessions of writers.

It is a program, not a library: it is started as `epochal-catalog serve` and reached over HTTP only.
"""
