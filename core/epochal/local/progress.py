"""How far the start of many streams is, said so that one sees that something happens, and not too often."""

from collections.abc import Callable

QUIET = 1.0
"""Seconds for which streams may be on their way before anything is said: one stream alone is quicker."""
EVERY = 1.0
"""Seconds between two lines, at least."""


class Progress:
    """Told what `look` sees, says `42 of 100 streams are served` by `tell`. Reads no clock."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since: float | None = None
        self._told: tuple[int, int] | None = None
        self._told_at = 0.0

    def look(self, served: int, wanted: int, now: float) -> None:
        """So many of so many streams are served at `now`, in seconds of any clock."""
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
