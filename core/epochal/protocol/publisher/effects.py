"""Effects: what a segment's publisher asks its shell to do.

Shells and simulations can handle these values without knowing the machine. They are carried out in the order in which
they are taken.
"""

from typing import NamedTuple, TypeAlias

from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.publisher.journal import Note
from epochal.protocol.topics.filter import TopicFilter


class Push(NamedTuple):
    """Push an event (or a heartbeat) to every subscriber of the segment."""

    message: m.Event | m.Heartbeat


class Reply(NamedTuple):
    """Send a message to one writer."""

    peer: bytes
    message: m.Message


class SendAnswers(NamedTuple):
    """Send messages to one client on `requests`."""

    peer: bytes
    messages: tuple[m.Message, ...]


class Private(NamedTuple):
    """Push a message to one subscription alone, `P<nonce>`, after all that is gathered for any channel (F6).

    `replaced`: the token of the channel that the subscription leaves. `Channels.left` then adds the last event on that
    channel to the snapshot (F8).
    """

    subscription: bytes
    message: m.Message
    replaced: bytes | None = None


class Log(NamedTuple):
    """Write the events among the effects of this take, and `notes`, to the log on disk, as one entry.

    The last effect of a take. No other effect of the take is carried out before the entry is written (E9), and also
    synced (fsync) if `secure` is set or the durability policy says so.
    """

    notes: tuple[Note, ...]
    secure: bool


class FindState(NamedTuple):
    """Find the state after event `seq` in the log on disk. Answered by `SegmentServer.state_found` or `.not_read`."""

    peer: bytes
    request: int
    seq: int


class FindBeginning(NamedTuple):
    """Find where all that is `wanted` begins in the log on disk, if it begins before what is in memory.

    Answered by `SegmentServer.state_found` or `.not_read`. If it begins before the log does, the answer is the log's
    first state.
    """

    peer: bytes
    request: int
    wanted: EpochQuery


class ReadLog(NamedTuple):
    """Send the client the next events after `after` from the log on disk, as one chunk that is not the last.

    Only events that were carried out already (E9); at most `max_events`, and at most `max_bytes` unless it is a single
    event. With `topics`, batches of other topics are left out, and a longer piece of the log is read if few are wanted;
    the chunk says up to which event (F10). Answered by `SegmentServer.was_read` or `.not_read`.
    """

    peer: bytes
    request: int
    after: int
    max_events: int
    max_bytes: int
    topics: TopicFilter | None = None


class ReportFinishing(NamedTuple):
    """Report to the catalog whether this segment is finishing.

    `number` orders the reports (E7 finish). Answered by `SegmentPublisher.finishing_answered`.
    """

    number: int
    finishing: bool


class AskRecord(NamedTuple):
    """Ask the catalog to store `SegmentPublisher.record()` now rather than with the next renewal (E11 horizon).

    Answered by `SegmentPublisher.recorded`. The effects of the same take need not wait for the answer: the machine has
    held back whatever must wait.
    """


PublisherEffect: TypeAlias = (
    AskRecord | Push | Reply | SendAnswers | Private | ReportFinishing | Log | FindState | FindBeginning | ReadLog
)
