"""OpenTelemetry for Epochal's programs: names, settings, and an SDK that never blocks the work that it traces.

Services, Spark's workers and the command line use the SDK; the client needs at most OpenTelemetry's API.
"""
