"""The file by which a superseded publisher keeps itself from being started again (E12).

An exit status is not enough: what starts processes may ignore it (a pod's containers are always started again). And
to the catalog, a process that begins is a newer owner than the one that took over.
"""

import logging
import os
from pathlib import Path

from epochal.logfiles.disk import sync_directory

logger = logging.getLogger("epochal.publisher")


def find_mark(path: Path | None) -> str | None:
    """Why an earlier life of this publisher was superseded; None if there is no mark, or no `path` is set."""
    if path is None or not path.exists():
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def leave_mark(path: Path | None, reason: str) -> None:
    """Write the mark, durably. If the disk fails, that is logged, and the process ends all the same."""
    if path is None:
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(f"{reason}\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as error:
        logger.error("%s cannot be written, so that a start of this publisher would take over again: %s", path, error)
