"""The catalog as a process: settings, start and stop, metrics, and one request after the other."""
