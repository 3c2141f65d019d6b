"""Reports how far the start of many streams is, often enough to show progress, and not more than once a second."""

from collections.abc import Callable

QUIET = 1.0
"""Seconds for which streams may be starting before anything is printed: one stream alone is quicker."""
EVERY = 1.0
"""Least seconds between two lines."""


class Progress:
    """Calls `tell` with lines such as `42 of 100 streams are served`, from the numbers given to `look`. No clock."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since: float | None = None
        self._told: tuple[int, int] | None = None
        self._told_at = 0.0

    def look(self, served: int, wanted: int, now: float) -> None:
        """`served` of `wanted` streams are served at `now`, in seconds of any clock."""
        if served >= wanted:
            if self._told is not None and wanted:
                self._say(served, wanted, now)
            self._since = self._told = None
            return
        if self._since is None:
            self._since = now
        early = now - self._since < QUIET or (self._told is not None and now - self._told_at < EVERY)
        if not early and (served, wanted) != self._told:
            self._say(served, wanted, now)

    def _say(self, served: int, wanted: int, now: float) -> None:
        self._told, self._told_at = (served, wanted), now
        self._tell(f"{served} of {wanted} streams are served" if wanted > 1 else f"{served} of 1 stream is served")
