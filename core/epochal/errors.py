"""Every error that Epochal raises on purpose, in one tree.

The `code` of an error is part of the contract: it is sent over the wire and in problem+json bodies, and it never
changes.

    EpochalError
    +-- UsageError                 the caller can fix it; retrying the same call cannot help
    |   +-- TimeShapeError             a time that is not of the stream's declared shape
    |   +-- CapabilityError            an append or move at a time below what the writer holds
    |   +-- RecordTypeError            a record that the stream's encoding cannot carry
    |   +-- PayloadTooLarge            an append above the stream's payload limit
    |   +-- TooManyEpochs              more epochs under way at once than a segment keeps track of
    |   +-- WriterClosed               a call on a writer that was closed, finished or aborted
    |   +-- CursorError                a cursor of another stream, or not a cursor
    |   +-- ManifestError              a manifest with wrong fields; lists every problem
    |   +-- SchemaMismatch             the stream is declared with another time shape or encoding
    |   +-- ConfigError                a setting that cannot be used
    +-- StreamError                the state of the stream forbids it
    |   +-- StreamNotFound
    |   +-- StreamComplete             every writer has finished; nothing more can be published
    |   +-- StreamGone                 deleted (perhaps created again) while in use
    |   +-- EpochAbortedError          the epoch was aborted; it can never complete
    |   +-- RepeatDiffers              another append was logged under this number
    |   +-- AppendsLost                a publisher lost what it had acknowledged without a volume
    |   +-- WriterFenced               a newer session of the same writer id took over
    |   +-- WriterLost                 a publisher gave this session up: no heartbeat in time
    |   +-- HistoryTruncated           the wanted events are older than what is retained
    |   +-- EpochTooLarge              one incomplete epoch exceeds the subscriber's buffer
    |   +-- QueryRunning               a Spark query of this name publishes to the stream now
    |   +-- QueryIsNew                 the stream knows this Spark query by another checkpoint
    |   +-- PartitionsChanged          a batch that was begun would run again with other partitions
    +-- LogError                   a segment's log on disk cannot be used as asked
    |   +-- CorruptLog                 bytes on disk are not what was written
    |   +-- LogFull                    no space left; nothing was written
    |   +-- LogFailed                  the disk failed; this log takes nothing more
    |   +-- LogTaken                   another process owns the log
    |   +-- LogMismatch                the log is another segment's, or of a newer format
    +-- Unavailable                the other side cannot be reached now; a later retry can help
    |   +-- CatalogUnavailable
    |   +-- NoPublisher                a segment of the stream has no publisher
    |   +-- TimedOut
    |   +-- RelayEnded                 a relay has lost its place, or stops: its subscribers join again
    |   +-- Superseded                 a newer publisher owns the segment
    |   +-- BufferFull                 appends come faster than they are acknowledged
    |   +-- ClusterUnavailable         Kubernetes, or a pod in it, cannot be reached now
    +-- BackgroundTaskEnded        a task that serves a writer or a subscription was cancelled, or failed
    +-- SidecarUnavailable         the sidecar that a writer publishes through is gone, or is another one now
    +-- ClusterError               Kubernetes refuses, or has not, what was asked of it
    +-- ProtocolError              the wire protocol was broken
        +-- LocalProtocolError         by this side: a bug here
        +-- RemoteProtocolError        by the peer; what it sent is discarded
            +-- LimitExceeded              larger, deeper or longer than the protocol allows
            +-- VersionMismatch            no protocol version in common
            +-- ChecksumMismatch           the payload is not what the writer sent
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

MAX_CODE = 200
"""Characters that are kept of a code that a peer sent and that is unknown here."""


class EpochalError(Exception):
    """Base of all errors raised on purpose.

    `code` is stable and travels over the wire; `retryable` says whether the same call can succeed later without a
    change.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


class UsageError(EpochalError):
    """The caller asked for something that can never work as asked."""

    code = "usage"


class TimeShapeError(UsageError):
    """A time that does not have the stream's declared shape, or is outside 0 .. 2^63-1 (S34)."""

    code = "time_shape"


class CapabilityError(UsageError):
    """An append or a move at a time that no held capability reaches (S35)."""

    code = "capability"


class RecordTypeError(UsageError):
    """A record that the stream's payload encoding cannot carry."""

    code = "record_type"


class PayloadTooLarge(UsageError):
    """One append is larger than the publisher's payload limit."""

    code = "payload_too_large"


class TooManyEpochs(UsageError):
    """A segment would have more epochs under way, or more times held, than it can report to a subscriber at once."""

    code = "too_many_epochs"


class WriterClosed(UsageError):
    """The writer was closed, finished or aborted before this call."""

    code = "writer_closed"


class CursorError(UsageError):
    """Not a cursor, or a cursor of another stream."""

    code = "cursor"


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong field: its path, what is wrong, and what would be right."""

    path: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        """One line for people: `spec.time.shape: is required; e.g. int`."""
        return f"{self.path}: {self.reason}" + (f"; {self.hint}" if self.hint else "")

    def to_json(self) -> dict[str, str]:
        """The form in problem+json bodies."""
        return asdict(self)


class _WithProblems(UsageError):
    def __init__(self, message: str, problems: "tuple[Problem, ...] | list[Problem]" = ()) -> None:
        self.problems = tuple(problems)
        lines = [message, *(f"  {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class ManifestError(_WithProblems):
    """A Stream manifest that cannot be accepted; `problems` lists every wrong field."""

    code = "invalid_manifest"


class SchemaMismatch(_WithProblems):
    """The stream is declared with another time shape, encoding or schema than the caller expects (S28)."""

    code = "schema_mismatch"


class ConfigError(_WithProblems):
    """Settings that cannot be used; `problems` lists all of them."""

    code = "config"


class StreamError(EpochalError):
    """The state of the stream forbids the call."""

    code = "stream"


class StreamNotFound(StreamError):
    """No stream of that name is declared."""

    code = "stream_not_found"


class StreamComplete(StreamError):
    """All writers have finished the stream; it can be read but not written (E7 finish)."""

    code = "stream_complete"


class StreamGone(StreamError):
    """The stream was deleted, or deleted and created again, while it was in use (S26)."""

    code = "stream_gone"


class EpochAbortedError(StreamError):
    """An append at a time whose epoch was aborted; nothing was logged (E2)."""

    code = "epoch_aborted"


class RepeatDiffers(StreamError):
    """An append repeats a number but is not the append that was logged under it; nothing was logged (E49).

    `number` of `writer` at `segment` has another time, record count or checksum, or was never logged: a task that runs
    again has other records, or the same in another order. `number >> 32` is the group of the appends, such as a batch.
    """

    code = "repeat_differs"

    def __init__(self, detail: str, writer: str = "", segment: str = "", number: int = -1) -> None:
        self.writer = writer
        self.segment = segment
        self.number = number
        super().__init__(detail)

    @classmethod
    def of(cls, writer: str, segment: str, number: int) -> "RepeatDiffers":
        """The error of one append."""
        detail = "another time, record count or checksum was logged under this number, or nothing"
        return cls(f"append {number} of writer {writer!r} to segment {segment}: {detail}", writer, segment, number)


class AppendsLost(StreamError):
    """A publisher without a volume crashed and lost acknowledged appends; their epochs are aborted (E11 horizon)."""

    code = "appends_lost"


class WriterFenced(StreamError):
    """A newer session of the same writer id has opened; this one must stop (E6 sessions)."""

    code = "writer_fenced"


class WriterLost(StreamError):
    """A publisher heard nothing from this session for the stream's writer time-out and gave it up (E3 lost writers)."""

    code = "writer_lost"
    retryable = True


class HistoryTruncated(StreamError):
    """The wanted events are older than the retained history (E13 retention)."""

    code = "history_truncated"


class EpochTooLarge(StreamError):
    """The epochs that are not complete yet exceed the subscriber's `max_buffer_bytes` (E18)."""

    code = "epoch_too_large"


class QueryRunning(StreamError):
    """A Spark query of this name publishes to the stream now, and was not fenced (E6 sessions).

    `stream` is `namespace/name`, `query` the writer id under which it publishes.
    """

    code = "query_running"
    retryable = True

    def __init__(self, message: str, *, stream: str = "", query: str = "") -> None:
        self.stream = stream
        self.query = query
        super().__init__(message)


class QueryIsNew(StreamError):
    """A Spark query begins with a new checkpoint, but the stream already has rows from a query of this name.

    From the new checkpoint Spark would publish those rows again. `batch` is the last micro-batch that the publishers
    remember of that query, None if they remember none.
    """

    code = "query_is_new"

    def __init__(
        self, message: str, *, stream: str = "", query: str = "", checkpoint: str = "", batch: int | None = None
    ) -> None:
        self.stream = stream
        self.query = query
        self.checkpoint = checkpoint
        self.batch = batch
        super().__init__(message)


class PartitionsChanged(StreamError):
    """A micro-batch that was begun with `before` partitions would run again with `now`; nothing of it was published.

    The rows that the first run has published cannot be recognised among other partitions: some would be published twice
    and others never (E6 sessions).
    """

    code = "partitions_changed"

    def __init__(self, message: str, *, query: str = "", batch: int = -1, before: int = 0, now: int = 0) -> None:
        self.query = query
        self.batch = batch
        self.before = before
        self.now = now
        super().__init__(message)


class LogError(EpochalError):
    """A segment's log on disk cannot be used as asked."""

    code = "log"


class CorruptLog(LogError):
    """Bytes `first` up to, not including, `last` of the log file `path` are not what was written.

    They are never cut off or skipped. `behind` is the position after them from which reading works again; None when
    nothing readable follows in this file.
    """

    code = "corrupt_log"

    def __init__(
        self, path: object, first: int = 0, last: int = 0, reason: str = "", behind: int | None = None
    ) -> None:
        self.path = path
        self.first = first
        self.last = last
        self.reason = reason
        self.behind = behind
        where = f"{path}: bytes {first} to {last} are damaged" if last else str(path)
        super().__init__(where + (f": {reason}" if reason else ""))


class LogFull(LogError):
    """No space is left for the log; nothing was written, and the same write can be tried again once there is.

    `number`: the operating system's (errno), which says whether the disk is full or a quota is used up; 0 if another
    process has said so.
    """

    code = "log_full"
    retryable = True

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class LogFailed(LogError):
    """The disk failed: what it holds now is unknown, so this log takes nothing more until it is opened again."""

    code = "log_failed"


class LogTaken(LogError):
    """Another process owns the log; its name is in the message."""

    code = "log_taken"
    retryable = True


class LogMismatch(LogError):
    """The log belongs to another stream or segment, or its format is newer than this version reads."""

    code = "log_mismatch"


class Unavailable(EpochalError):
    """The other side cannot be reached or cannot answer now."""

    code = "unavailable"
    retryable = True


class BackgroundTaskEnded(EpochalError):
    """A task that a writer, a subscription or a blocking call depends on was cancelled, or failed.

    Tasks of the event loop that are not the program's own must not be cancelled one by one, nor all at once, while
    something is open. The writer or subscription has ended: open it again.
    """

    code = "background_task_ended"


class SidecarUnavailable(EpochalError):
    """The sidecar that this program publishes through is gone, or is another one now: open again, or retry."""

    code = "sidecar_unavailable"


class CatalogUnavailable(Unavailable):
    """The catalog does not answer."""

    code = "catalog_unavailable"


class NoPublisher(Unavailable):
    """A segment of the stream has no publisher at present."""

    code = "no_publisher"


class RelayEnded(Unavailable):
    """A relay cannot go on after what it has sent, or stops; its subscribers join again after their last events."""

    code = "relay_ended"


class TimedOut(Unavailable):
    """An answer did not come in time."""

    code = "timed_out"


class BufferFull(Unavailable):
    """The writer's buffer of unacknowledged appends is full; await `flush()` or use `append`."""

    code = "buffer_full"


class Superseded(Unavailable):
    """A newer publisher has registered for the segment; this one must stop (E12 fencing)."""

    code = "superseded"
    retryable = False


class ClusterUnavailable(Unavailable):
    """The API server of Kubernetes, or a pod reached through it, cannot be reached or is not ready."""

    code = "cluster_unavailable"


class ClusterError(EpochalError):
    """Kubernetes refuses a request: a right or valid credentials are missing, or the object does not exist."""

    code = "cluster"


class ProtocolError(EpochalError):
    """The wire protocol was broken."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol: a bug here."""

    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; what it sent is discarded."""

    code = "remote_protocol"


class LimitExceeded(RemoteProtocolError):
    """A message is larger, deeper or longer than the protocol allows."""

    code = "limit_exceeded"


class VersionMismatch(RemoteProtocolError):
    """The peer speaks no protocol version that this side speaks."""

    code = "version_mismatch"


class ChecksumMismatch(RemoteProtocolError):
    """A payload does not have the CRC-32C that its writer computed."""

    code = "checksum_mismatch"
    retryable = True


def _tree(root: type[EpochalError]) -> dict[str, type[EpochalError]]:
    """By code, the class that defines it. A subclass without a code of its own is not rebuilt from a code."""
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_code(code: str, detail: str) -> EpochalError:
    """Rebuild an error that a peer reported by its stable `code`; an unknown code gives an `EpochalError` with it."""
    kind: Any = _tree(EpochalError).get(code, EpochalError)
    error: Any = kind(detail)
    if error.code != code:
        error.code = code[:MAX_CODE]  # on this instance only
    return cast(EpochalError, error)
