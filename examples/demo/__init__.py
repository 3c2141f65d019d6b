"""The demo: Spark publishes real flights, and two subscribers compute from whole hours what Spark computes.

It runs from the source tree: `make demo`, or `python -m examples.demo` at its root, on this machine;
`make demo-cluster` in pods.
"""
