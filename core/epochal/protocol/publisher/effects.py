"""What a segment's publisher asks its shell to do.

Shells and simulations handle these values without knowing the machine. They are carried out in the order in which they
are taken.
"""

from typing import NamedTuple, TypeAlias

from epochal.protocol import messages as m
from epochal.protocol.log.epoch_query import EpochQuery
from epochal.protocol.publisher.journal import Note


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
    """Push a message to one subscription alone, `P<nonce>`."""

    subscription: bytes
    message: m.Message


class Log(NamedTuple):
    """Put the events among the effects of this take into the log on disk, and `notes` with them, as one entry.

    The last effect of a take. Until that is done nothing of the take is carried out (E9); it has to be secured (fsync)
    first where `secure` says so, or the policy does (E10).
    """

    notes: tuple[Note, ...]
    secure: bool


class FindState(NamedTuple):
    """Find the state behind event `seq` in the log on disk, for `SegmentServer.state_found`, or `.not_read`."""

    peer: bytes
    request: int
    seq: int


class FindBeginning(NamedTuple):
    """Find where all that is `wanted` begins in the log on disk, if it begins before what is in memory.

    For `SegmentServer.state_found`, or `.not_read`. Where it begins before the log does, that is the log's first state.
    """

    peer: bytes
    request: int
    wanted: EpochQuery


class ReadLog(NamedTuple):
    """Send the client the next events behind `after` from the log on disk, as one chunk that is not the last.

    None behind the last one that was carried out (E9).
    At most `max_events` of them, and `max_bytes`, if there are more than one. Then tell `SegmentServer.was_read`, or
    `.not_read`.
    """

    peer: bytes
    request: int
    after: int
    max_events: int
    max_bytes: int


class ReportFinishing(NamedTuple):
    """Tell the catalog whether this segment is finishing.

    `number` orders the reports (E7). Answered by `finishing_answered`.
    """

    number: int
    finishing: bool


class AskRecord(NamedTuple):
    """Ask the catalog to store `SegmentPublisher.record()` now rather than with the next renewal (E11).

    Answered by `SegmentPublisher.recorded`. Nothing of a take waits for it: what does is not among the effects yet.
    """


PublisherEffect: TypeAlias = (
    AskRecord | Push | Reply | SendAnswers | Private | ReportFinishing | Log | FindState | FindBeginning | ReadLog
)
