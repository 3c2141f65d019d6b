"""Names of spans, attributes and metrics, all in one place.

The names are those of OpenTelemetry's messaging conventions wherever these have one. They are written out here because
the conventions' package is in development and renames its constants. Our own names begin with `epochal.`.

Source: OpenTelemetry semantic conventions, messaging.
"""

from typing import Final, TypeAlias

Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Value]

SCOPE: Final = "epochal"
"""The instrumentation scope of all spans and metrics."""
MAX_LINKS: Final = 128
"""Links of one span; OpenTelemetry's own default limit."""

# ---- attributes ----

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
MESSAGES: Final = "messaging.batch.message_count"
ERROR: Final = "error.type"

TIME: Final = "epochal.time"
"""An epoch's time, as JSON."""
ATTEMPT: Final = "epochal.attempt"
WAY: Final = "epochal.way"
"""`sidecar` or `direct`."""
SPARK_PARTITION: Final = "epochal.spark.partition"
"""The partition of the task that sends; `messaging.destination.partition.id` is the segment that it sends to."""
FIRST: Final = "epochal.seq.first"
LAST: Final = "epochal.seq.last"
INCARNATION: Final = "epochal.incarnation"
APPENDS: Final = "epochal.appends"
DURABLE: Final = "epochal.durable.seconds"
PUBLISHER: Final = "epochal.publisher.address"
HELD: Final = "epochal.sidecar.held"
"""Bytes that publishers have not taken yet."""
LINKS_LEFT_OUT: Final = "epochal.links.left_out"
GREATEST: Final = "epochal.time.greatest"
"""The greatest time in a batch, as JSON; of partly ordered times their join."""
FRONTIER: Final = "epochal.frontier"
"""The frontier after a commit, as JSON: every time that is not at or after one of these is complete."""
QUERY: Final = "epochal.query"
BATCH: Final = "epochal.batch"
OUTCOME: Final = "epochal.outcome"

# ---- spans ----

SYSTEM_NAME: Final = "epochal"
COMMIT: Final = "commit"
RECONCILE: Final = "reconcile"

_TYPES: Final = {"send": "send", "process": "process"}
"""The convention has a type for these operations alone; `forward` and `append` are inner steps of a send."""


def span_name(operation: str, stream: str) -> str:
    """What a span of an operation on a stream is called.

    >>> span_name("send", "demo/flights")
    'send demo/flights'
    """
    return f"{operation} {stream}"


def batch_name(batch: int) -> str:
    """What the span of a Spark micro-batch is called; a batch job is its own batch 0."""
    return f"batch {batch}"


def on_stream(operation: str, stream: str) -> Attributes:
    """The attributes that every span of an operation on a stream has.

    >>> on_stream("append", "demo/flights")["messaging.operation.name"]
    'append'
    """
    attributes: Attributes = {SYSTEM: SYSTEM_NAME, OPERATION: operation, DESTINATION: stream}
    if operation in _TYPES:
        attributes[OPERATION_TYPE] = _TYPES[operation]
    return attributes


# ---- metrics ----

SENT_MESSAGES: Final = "messaging.client.sent.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SIDECAR_FALLBACKS: Final = "epochal.client.sidecar.fallbacks"
SPANS_DROPPED: Final = "epochal.tracing.spans.dropped"

DURATION_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds; those that the conventions advise."""
