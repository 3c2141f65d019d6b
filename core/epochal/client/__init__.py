"""The client library: writers, subscriptions and calls to the catalog, on asyncio or waiting."""

from epochal.client.blocking.client import BlockingClient, BlockingSubscription, BlockingWriter, connect_blocking
from epochal.client.client import Client, connect
from epochal.client.subscriber.subscriber import Subscription
from epochal.client.writer.writer import Writer

__all__ = [
    "BlockingClient",
    "BlockingSubscription",
    "BlockingWriter",
    "Client",
    "Subscription",
    "Writer",
    "connect",
    "connect_blocking",
]
