"""OpenTelemetry for Epochal's programs: names, settings, and an SDK that never blocks the work that it traces.

Separate from the client, which needs at most OpenTelemetry's API, and from the services, because Spark's workers and
the command line use it too.
"""
