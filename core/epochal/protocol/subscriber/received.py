"""How much has come to a reader, and how much of that for nothing. Sources: rules F2, F12; Q7."""

from dataclasses import dataclass

from epochal.protocol import messages as m
from epochal.protocol.topics.filter import TopicFilter


@dataclass(slots=True)
class Received:
    """Batches that were sent to one reader, pushed or pulled, those that came twice among them; bytes are payloads."""

    records: int = 0
    bytes: int = 0
    unwanted_bytes: int = 0
    """Of topics that are not wanted: the reader left them out."""
    firehose_bytes: int = 0
    """Pushed on a channel that was joined before the publisher knew what is wanted."""

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
