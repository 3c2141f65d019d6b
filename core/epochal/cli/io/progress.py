"""The progress of `epochal pub`: one line that is redrawn on a terminal, else a plain line now and then."""

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from epochal.cli.io.terminal import console, is_live, note

PLAIN_INTERVAL = 10.0
"""Seconds between lines where nothing can be redrawn, so that a log is not flooded."""


class Counter(AbstractContextManager["Counter"]):
    """Shows how many records are out, of `total` if that is known; nothing at all when `quiet`."""

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if not self._quiet and is_live(sys.stderr):
            parts = [BarColumn(24)] if self._total else [SpinnerColumn("line")]
            self._bar = Progress(*parts, TextColumn("{task.description}"), TimeElapsedColumn(),
                                 console=console(sys.stderr), transient=True)  # fmt: skip
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def show(self, published: int) -> None:
        """So many records are out."""
        if self._bar is not None:
            self._bar.update(self._task, completed=published, description=self._words(published))
        elif not self._quiet and time.monotonic() - self._told >= PLAIN_INTERVAL:
            self._told = time.monotonic()
            note(f"published {self._words(published)}")

    def _words(self, published: int) -> str:
        total = f" of {self._total:,}" if self._total else ""
        return f"{published:,}{total} records ({published / max(self.seconds, 0.001):,.0f}/s)"
