"""The errors that only the catalog raises, in addition to those of `epochal.errors`.

Separate from the HTTP layer because the rules raise them and must not know status codes; `problems` maps both kinds to
answers.
"""

from epochal.errors import ConfigError, StreamError, Unavailable


class ReservedName(StreamError):
    """A name that begins with `$` is the catalog's own: it cannot be declared, deleted, published to or looked up."""

    code = "reserved_name"


class RevisionAhead(StreamError):
    """A watcher requests the changes after a revision that this catalog never gave out."""

    code = "revision_ahead"


class StoreUnavailable(Unavailable):
    """The database could not take the write now; nothing was changed, in the file or in memory."""

    code = "store_unavailable"


class StoreFailed(StoreUnavailable):
    """After this failure it is not known what the database holds; the process must end and read it again."""

    code = "store_failed"


class UnknownSchema(ConfigError):
    """The database was written by a newer release, by one before 0.1.0, or by another program."""

    code = "unknown_schema"


class DataDirectoryError(ConfigError):
    """The data directory cannot be used: in use by another process, or on a file system that cannot keep a database."""

    code = "data_directory"


class StoredStreamError(ConfigError):
    """The database has a stream that this release cannot read."""

    code = "stored_stream"
