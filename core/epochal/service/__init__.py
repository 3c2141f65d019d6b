"""What every service process needs: settings, start and stop, HTTP with limits, metrics.

Separate from the services so that it is written once; above all the limits on what a hostile client may cost must be
the same everywhere. It knows nothing about streams. Clients and the protocol never import it.
"""
