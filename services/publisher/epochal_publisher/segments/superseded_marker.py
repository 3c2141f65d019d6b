"""The mark that a superseded publisher leaves behind, so that it is not started again (E12).

Apart from the entry point because it outlives the process: whatever starts processes may not heed an exit status (a
pod's containers are always started again), and to the catalog a process that begins is a newer owner than the one that
took over.
"""

import logging
import os
from pathlib import Path

from epochal.logfiles.disk import sync_directory

logger = logging.getLogger("epochal.publisher")


def find_mark(path: Path | None) -> str | None:
    """Why an earlier life of this publisher was superseded; None where there is no mark, or none is asked for."""
    if path is None or not path.exists():
        return None
    return path.read_text(encoding="utf-8", errors="replace").strip()


def leave_mark(path: Path | None, reason: str) -> None:
    """Leave the mark, durably. A disk that does not take it is told: the process ends all the same."""
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
