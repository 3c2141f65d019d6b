"""The catalog: knows streams, segments, publishers and their addresses, and the sessions of writers.

Apart from the library because it is a program of its own; started as `epochal-catalog serve` and reached over HTTP
only.
"""
