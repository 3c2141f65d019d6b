"""The newest changes, kept for watchers that come back: a bounded window over the revisions.

Separate from the watchers because it does no I/O. The disk holds exactly the same window, so watchers miss no change
when the catalog restarts (S26).
"""

import json
from bisect import bisect_right
from operator import itemgetter

from epochal.catalog_api.kinds import fields_of
from epochal.errors import HistoryTruncated
from epochal_catalog.domain.records import ChangeRecord
from epochal_catalog.errors import RevisionAhead


class ChangeHistory:
    """At most 1.1 times `limit` changes, in order; `floor` is the oldest revision that can be resumed from."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor = self.newest = 0
        self._frames: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, change: ChangeRecord) -> None:
        """Take over a change that was stored."""
        self._frames.append((change.revision, frame(change)))
        self.newest = change.revision

    def forget(self, before: int) -> None:
        """Drop the changes below a revision."""
        del self._frames[: bisect_right(self._frames, before - 1, key=itemgetter(0))]
        self.floor = max(self.floor, before - 1)

    def settle(self, revision: int, floor: int) -> None:
        """Set `newest` and `floor` after loading: the catalog's revision, and the floor that was stored."""
        self.newest = revision
        self.floor = floor

    def excess(self, coming: int) -> int | None:
        """Forget below this revision when `coming` more are added; None: not yet. A tenth of `limit` at a time."""
        over = len(self._frames) + coming - self.limit
        if over <= self.limit // 10 or not self._frames:
            return None
        return self._frames[min(over, len(self._frames)) - 1][0] + 1

    def check(self, revision: int) -> None:
        """Raises `HistoryTruncated` or `RevisionAhead` unless `revision` was given out and all later changes are here.

        Revisions have gaps. One that lies in a gap was never given out by this database: it comes from a database that
        was since replaced by an older copy.
        """
        if revision < self.floor:
            raise HistoryTruncated(
                f"the changes after revision {revision} are no longer kept, the first that can be resumed from is"
                f" {self.floor}; list what there is (GET /v1/streams) and watch from the revision of that answer"
            )
        if revision not in (self.floor, self.newest) and not self._has(revision):
            raise RevisionAhead(
                f"the newest revision is {self.newest}, {revision} is of another catalog or of one whose data was lost;"
                " list what there is (GET /v1/streams) and watch from the revision of that answer"
            )

    def behind(self, revision: int) -> int:
        """How many of the kept changes are after a revision."""
        return len(self._frames) - self._after(revision)

    def read(self, revision: int, most: int) -> tuple[bytes, int]:
        """Whole changes after a revision, about `most` bytes in all, and the revision of the last of them."""
        found, size = [], 0
        for at in range(self._after(revision), len(self._frames)):
            revision, data = self._frames[at]
            found.append(data)
            size += len(data)
            if size >= most:
                break
        return b"".join(found), revision

    def _has(self, revision: int) -> bool:
        at = self._after(revision) - 1
        return at >= 0 and self._frames[at][0] == revision

    def _after(self, revision: int) -> int:
        return bisect_right(self._frames, revision, key=itemgetter(0))


def frame(change: ChangeRecord) -> bytes:
    """A change as a server-sent event."""
    data = json.dumps(fields_of(change), separators=(",", ":"))
    return f"id: {change.revision}\nevent: {change.kind}\ndata: {data}\n\n".encode()
