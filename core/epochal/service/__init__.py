"""What every service process needs: settings, start and stop, HTTP with limits, metrics.

It limits what a hostile client may cost, in the same way for every service. It knows nothing about streams. Clients and
the protocol never import it.
"""
