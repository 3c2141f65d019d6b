"""Epochal: publish/subscribe for timely streams. Everything promised to users is exported here.

What is exported is loaded when it is first used: the command line, and programs that need the errors alone, start at
once.
"""

from typing import TYPE_CHECKING, Any

from epochal import errors
from epochal.errors import (
    AppendsLost,
    BackgroundTaskEnded,
    BufferFull,
    CapabilityError,
    CatalogUnavailable,
    ChecksumMismatch,
    ClusterError,
    ClusterUnavailable,
    ConfigError,
    CorruptLog,
    CursorError,
    EpochAbortedError,
    EpochalError,
    EpochTooLarge,
    HistoryTruncated,
    LimitExceeded,
    LocalProtocolError,
    LogError,
    LogFailed,
    LogFull,
    LogMismatch,
    LogTaken,
    ManifestError,
    NoPublisher,
    PartitionsChanged,
    PayloadTooLarge,
    ProtocolError,
    QueryIsNew,
    QueryRunning,
    RecordTypeError,
    RelayEnded,
    RemoteProtocolError,
    RepeatDiffers,
    SchemaMismatch,
    SidecarUnavailable,
    StreamComplete,
    StreamError,
    StreamGone,
    StreamNotFound,
    Superseded,
    TimedOut,
    TimeShapeError,
    TooManyEpochs,
    Unavailable,
    UsageError,
    VersionMismatch,
    WriterClosed,
    WriterFenced,
    WriterLost,
)

if TYPE_CHECKING:
    from epochal.client.blocking.client import BlockingClient, BlockingSubscription, BlockingWriter, connect_blocking
    from epochal.client.catalog.relay_choice import Via
    from epochal.client.client import Client, connect
    from epochal.client.subscriber.subscriber import Subscription
    from epochal.client.subscriber.traced import traced
    from epochal.client.subscriber.values import (
        Data,
        Epoch,
        EpochAborted,
        FrontierChanged,
        Gap,
        Rewound,
        SegmentDown,
        SegmentUp,
    )
    from epochal.client.writer.writer import Writer
    from epochal.protocol.messages import Position
    from epochal.protocol.subscriber.cursor import Cursor
    from epochal.protocol.time_codec import TimeCodec

    __version__: str
else:
    _HOMES = {
        **dict.fromkeys(
            ("BlockingClient", "BlockingSubscription", "BlockingWriter", "connect_blocking"),
            "epochal.client.blocking.client",
        ),
        **dict.fromkeys(("Client", "connect"), "epochal.client.client"),
        "Subscription": "epochal.client.subscriber.subscriber",
        "Writer": "epochal.client.writer.writer",
        "Cursor": "epochal.protocol.subscriber.cursor",
        "Position": "epochal.protocol.messages",
        "TimeCodec": "epochal.protocol.time_codec",
        "Via": "epochal.client.catalog.relay_choice",
        "traced": "epochal.client.subscriber.traced",
        **dict.fromkeys(
            ("Data", "Epoch", "EpochAborted", "FrontierChanged", "Gap", "Rewound", "SegmentDown", "SegmentUp"),
            "epochal.client.subscriber.values",
        ),
    }

    def __getattr__(name: str) -> Any:
        from importlib import import_module, metadata

        if name not in __all__:
            raise AttributeError(f"module 'epochal' has no attribute {name!r}")
        value = metadata.version("epochal") if name == "__version__" else getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AppendsLost",
    "BackgroundTaskEnded",
    "BlockingClient",
    "BlockingSubscription",
    "BlockingWriter",
    "BufferFull",
    "CapabilityError",
    "CatalogUnavailable",
    "ChecksumMismatch",
    "Client",
    "ClusterError",
    "ClusterUnavailable",
    "ConfigError",
    "CorruptLog",
    "Cursor",
    "CursorError",
    "Data",
    "Epoch",
    "EpochAborted",
    "EpochAbortedError",
    "EpochTooLarge",
    "EpochalError",
    "FrontierChanged",
    "Gap",
    "HistoryTruncated",
    "LimitExceeded",
    "LocalProtocolError",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogMismatch",
    "LogTaken",
    "ManifestError",
    "NoPublisher",
    "PartitionsChanged",
    "PayloadTooLarge",
    "Position",
    "ProtocolError",
    "QueryIsNew",
    "QueryRunning",
    "RecordTypeError",
    "RelayEnded",
    "RemoteProtocolError",
    "RepeatDiffers",
    "Rewound",
    "SchemaMismatch",
    "SegmentDown",
    "SegmentUp",
    "SidecarUnavailable",
    "StreamComplete",
    "StreamError",
    "StreamGone",
    "StreamNotFound",
    "Subscription",
    "Superseded",
    "TimeCodec",
    "TimeShapeError",
    "TimedOut",
    "TooManyEpochs",
    "Unavailable",
    "UsageError",
    "VersionMismatch",
    "Via",
    "Writer",
    "WriterClosed",
    "WriterFenced",
    "WriterLost",
    "__version__",
    "connect",
    "connect_blocking",
    "errors",
    "traced",
]
