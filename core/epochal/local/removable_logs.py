"""Decides which logs may be removed: only those of deleted streams.

Losing data by mistake is worse than keeping it. If the catalog does not list a stream, the stream was deleted only if
this catalog once knew it. A catalog with a new, empty database, or with an older copy of its own, may never have known
streams whose logs are on the disk.
"""

import json
import logging
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("epochal.local")

NOTE = "catalog.json"
_UID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class _Note:
    """The note about the catalog: the identity and revision of its database, and the logs of streams it never knew."""

    catalog: str
    revision: int
    kept: frozenset[str] = frozenset()


class StreamLogs:
    """The directories of the streams' logs, one a uid, in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._noted = self._read()

    @property
    def revision(self) -> int | None:
        """The revision of the last listing, also of an earlier run; None if there was none."""
        return None if self._noted is None else self._noted.revision

    def deleted(self, catalog: str, revision: int, listed: Collection[str], *, follows: bool) -> list[Path]:
        """Directories of deleted streams, according to the catalog's listing at `revision`.

        The first listing of a catalog, or the first one after it was restored from an older copy, is taken as all that
        it knows: directories that are not in it are kept for good. `follows`: the catalog has continued from the noted
        revision. The number alone does not show that, because an older copy can reach a higher one too.
        """
        there = self._uids()
        noted = self._noted
        known = noted is not None and noted.catalog == catalog and noted.revision <= revision and follows
        kept = there.difference(listed)
        if known and noted is not None:
            # Since the note, publishers were started only for streams that this catalog listed. So a directory that is
            # neither listed now nor kept in the note is of a stream that this catalog knew and has deleted.
            kept &= noted.kept
        elif kept:
            why = "it is a new one, or an older copy"
            logger.warning(
                "the catalog does not know the streams %s, whose logs are in %s, and cannot say that they were deleted "
                "(%s): they are kept; remove them if no one needs them", ", ".join(sorted(kept)), self._directory, why,
            )  # fmt: skip
        note = _Note(catalog, revision, frozenset(kept))
        if note != noted and (there or listed) and not self._write(note):
            return []  # nothing is removed by a listing that could not be noted
        return [self._directory / uid for uid in sorted(there.difference(listed, kept))]

    def _uids(self) -> set[str]:
        try:
            return {path.name for path in self._directory.iterdir() if _UID.fullmatch(path.name)}
        except FileNotFoundError:
            return set()

    def _read(self) -> _Note | None:
        """The note; None if there is no readable one, which keeps all logs."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads((self._directory / NOTE).read_bytes())
            return _Note(str(found["catalog"]), int(found["revision"]), frozenset(map(str, found["kept"])))
        return None

    def _write(self, note: _Note) -> bool:
        path = self._directory / NOTE
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(".tmp")
            shown = {"catalog": note.catalog, "revision": note.revision, "kept": sorted(note.kept)}
            aside.write_text(json.dumps(shown))
            aside.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written, so no logs are removed: %s", path, error.strerror)
            return False
        self._noted = note
        return True
