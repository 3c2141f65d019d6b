"""Counters as plain numbers, raised on the hot path and read by metrics and lease reports.

Counting costs one addition and needs no metrics library; `telemetry` exports the numbers.
"""

from dataclasses import asdict, dataclass, field

from epochal.errors import CorruptLog, HistoryTruncated
from epochal.protocol import messages as m


@dataclass(slots=True)
class SegmentCounters:
    """What happened at one segment since the process started; bytes as they travel."""

    appends: int = 0
    acks: int = 0
    pushed_messages: int = 0
    pushed_bytes: int = 0
    joins: int = 0
    coarse_joins: int = 0
    """Joins that got a channel that carries more than they want, because there are no more channels (F12)."""
    unsent_events: int = 0
    """Events to which no one had subscribed; they are not even encoded (S21)."""
    truncated_answers: int = 0
    """Requests for history (`since`) whose beginning, or a later part, was gone (Q2)."""
    corrupt_answers: int = 0
    """Requests for history that met damage in the log."""

    def answered(self, message: m.Message) -> None:
        """Count the answer to a request for history."""
        code = message.code if isinstance(message, m.Refused) else ""
        self.truncated_answers += isinstance(message, m.Truncated) or code == HistoryTruncated.code
        self.corrupt_answers += code == CorruptLog.code


@dataclass(slots=True)
class ProcessCounters:
    """What happened on the sockets that all segments share."""

    received_messages: int = 0
    received_bytes: int = 0
    refused_messages: int = 0
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """Messages that broke the protocol, by socket and error code."""
    shorter_prefixes: int = 0
    """Subscriptions to a prefix that is shorter than that of one channel or subscription, and so gets several (F11)."""
    discarded_messages: int = 0
    """Messages of peers that had broken the protocol before."""
    dropped_answers: int = 0
    """Answers to peers that read too slowly, or had left."""
    stalls: int = 0
    webhook_deliveries: int = 0
    """Deliveries of web-hooks that were accepted."""
    webhook_failures: int = 0
    """Deliveries that were not accepted; each is tried again."""
    webhook_ends: dict[str, int] = field(default_factory=dict)
    """Web-hooks that have ended, by reason."""
    failures: int = 0
    """Messages on which this process failed, by a bug."""

    def refused(self, socket: str, code: str) -> None:
        """Count a message of a peer that broke the protocol."""
        self.refused_messages += 1
        self.refusals[socket, code] = self.refusals.get((socket, code), 0) + 1

    def webhook_ended(self, why: str) -> None:
        """Count a web-hook that has ended."""
        self.webhook_ends[why] = self.webhook_ends.get(why, 0) + 1

    def snapshot(self) -> dict[str, int]:
        """All plain numbers by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}
