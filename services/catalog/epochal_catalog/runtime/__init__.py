"""What runs in a catalog: settings, metrics, writes one at a time, and the look-ups and watchers that wait."""
