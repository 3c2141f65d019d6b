"""Epochal: publish/subscribe for timely streams. Everything promised to users is exported here."""

from importlib.metadata import version

from epochal import errors
from epochal.client import (
    BlockingClient,
    BlockingSubscription,
    BlockingWriter,
    Client,
    Subscription,
    Writer,
    connect,
    connect_blocking,
)
from epochal.client.values import (
    Data,
    Epoch,
    EpochAborted,
    FrontierChanged,
    Gap,
    Rewound,
    SegmentDown,
    SegmentUp,
)
from epochal.errors import EpochalError
from epochal.protocol.cursors import Cursor
from epochal.protocol.messages import Position
from epochal.protocol.times import TimeCodec

__version__ = version("epochal")

__all__ = [
    "BlockingClient",
    "BlockingSubscription",
    "BlockingWriter",
    "Client",
    "Cursor",
    "Data",
    "Epoch",
    "EpochAborted",
    "EpochalError",
    "FrontierChanged",
    "Gap",
    "Position",
    "Rewound",
    "SegmentDown",
    "SegmentUp",
    "Subscription",
    "TimeCodec",
    "Writer",
    "__version__",
    "connect",
    "connect_blocking",
    "errors",
]
