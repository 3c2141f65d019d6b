"""The client library: writers, subscriptions and calls to the catalog, on asyncio."""

from epochal.client.client import Client, connect
from epochal.client.subscriber import Subscription
from epochal.client.writer import Writer

__all__ = ["Client", "Subscription", "Writer", "connect"]
