"""What every service process needs, whatever it serves: settings, start and stop, HTTP with limits, metrics.

Apart from the services because they would each write it again, and differently where it matters most: what a hostile
client may cost is decided here. Knows nothing of streams; clients and the protocol never import it.
"""
