"""The refusals that only the catalog gives, beside those of `epochal.errors`.

Apart from the HTTP layer because the rules raise them and must not know status codes; `problems` maps both kinds to
answers.
"""

from epochal.errors import ConfigError, Problem, StreamError, Unavailable, UsageError


class InvalidRequest(UsageError):
    """A body or a parameter that cannot be read; `problems` lists every wrong field."""

    code = "invalid_request"

    def __init__(self, message: str, problems: tuple[Problem, ...] | list[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class ImmutableField(InvalidRequest):
    """A manifest that changes what cannot change while the stream lives."""

    code = "immutable_field"


class SegmentNotFound(StreamError):
    """The stream has no segment of that id."""

    code = "segment_not_found"


class UnknownPublisher(StreamError):
    """No publisher is registered under that id; it should register."""

    code = "unknown_publisher"


class UnknownSubscription(StreamError):
    """There is no live subscription of that id; its reader should subscribe anew."""

    code = "unknown_subscription"


class NotOwner(StreamError):
    """Only who made a subscription can renew or withdraw it, by the token that it was given (S29)."""

    code = "not_owner"


class ReservedName(StreamError):
    """A name that begins with `$` is the catalog's own: it cannot be declared, deleted, published to or looked up."""

    code = "reserved_name"


class RevisionAhead(StreamError):
    """A watcher asks for what comes after a revision that this catalog has not reached."""

    code = "revision_ahead"


class StoreUnavailable(Unavailable):
    """The database could not take the write now; nothing was changed, in the file or in memory."""

    code = "store_unavailable"


class StoreFailed(StoreUnavailable):
    """The database failed in a way that leaves open what it holds; the process must end and read it anew."""

    code = "store_failed"


class Overloaded(Unavailable):
    """More waits or writes are pending than the settings allow."""

    code = "overloaded"


class ShuttingDown(Unavailable):
    """The catalog is stopping; the same call will do against its successor."""

    code = "shutting_down"


class SchemaTooNew(ConfigError):
    """The database was written by a newer release; this one will not touch it."""

    code = "schema_too_new"


class DataDirectoryError(ConfigError):
    """The data directory cannot be used: in use by another process, or on a file system that cannot keep a database."""

    code = "data_directory"


class StoredStreamError(ConfigError):
    """The database has a stream that this release cannot read."""

    code = "stored_stream"
