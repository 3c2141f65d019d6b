"""The catalog as a process: settings, start and stop, metrics, and writes one at a time."""
