"""The settings of local mode.

Every number is in one place, with the reason of its default.
"""

from dataclasses import dataclass
from pathlib import Path

DEFAULT_DATA = Path(".epochal")
"""Where `epochal up` keeps its files by default: in the directory of the project, as build tools do."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How local mode behaves; seconds and bytes."""

    poll_interval: float = 0.25
    """Between two reads of the catalog's streams: so short that a user who applies a manifest does not notice it."""
    start_timeout: float = 30.0
    """For a service to become ready: a cold start of Python on a busy machine takes seconds."""
    stop_timeout: float = 10.0
    """For a service to drain after SIGTERM, before SIGKILL."""
    restart_first: float = 0.1
    """Before the first restart of a service that ended; doubled each time."""
    restart_last: float = 5.0
    """The longest wait before a restart."""
    restart_reset: float = 10.0
    """A service that ran this long starts again after `restart_first`."""
    log_bytes: int = 1 << 20
    """Of one log file; there is one older file beside it."""
