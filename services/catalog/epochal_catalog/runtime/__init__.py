"""The running catalog: settings, metrics, one write at a time, and the look-ups and watchers that wait."""
