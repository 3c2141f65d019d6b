"""The client library: writers, subscriptions and calls to the catalog, on asyncio or waiting."""
