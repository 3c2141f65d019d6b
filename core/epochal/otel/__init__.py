"""OpenTelemetry for the parts that are programs: names, settings, and an SDK that never holds up what it watches.

Separate from the client, which needs at most OpenTelemetry's API, and from the services, because Spark's workers and
the command line use it too.
"""
