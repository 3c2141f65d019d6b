"""How much a reader has received, and how much of that it did not want. Sources: rules F2, F12; Q7."""

from dataclasses import dataclass

from epochal.protocol import messages as m
from epochal.protocol.topics.filter import TopicFilter


@dataclass(slots=True)
class Received:
    """Batches that one reader was sent, pushed or pulled; repeated ones count again. Bytes are those of payloads."""

    records: int = 0
    bytes: int = 0
    unwanted_bytes: int = 0
    """Bytes of topics that are not wanted: the reader left them out."""
    firehose_bytes: int = 0
    """Bytes pushed on a channel that was joined before the publisher knew the wanted topics."""

    def count(self, data: m.Data, topics: TopicFilter | None, *, firehose: bool) -> None:
        """One batch has come; `topics` are wanted, None for all."""
        size = len(data.payload)
        self.records += data.records
        self.bytes += size
        if topics is not None and not topics.wants(data.topic):
            self.unwanted_bytes += size
        if firehose:
            self.firehose_bytes += size

    def add(self, other: "Received") -> None:
        """Count what has come on another connection as well."""
        self.records += other.records
        self.bytes += other.bytes
        self.unwanted_bytes += other.unwanted_bytes
        self.firehose_bytes += other.firehose_bytes
