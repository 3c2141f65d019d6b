"""The files of a log as readers see them, oldest first. The last one is being written, and both ends move.

Any thread may read while one writes. Everything that they share is here, under one lock that is never held during disk
work.

Sources: rules E13, Q2, Q3; docs/log.md.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final

from epochal.errors import CorruptLog, HistoryTruncated
from epochal.logfiles.disk import Disk
from epochal.logfiles.files import LogFile, read_index
from epochal.logfiles.log_reader import FileReader, LogBatch, LogCursor
from epochal.protocol.log.file_format import Index, LogCheckpoint
from epochal.protocol.log.history import Lull, SegmentState
from epochal.protocol.messages import NOTHING_YET

PARKED: Final = 16
"""Most readers that are kept for the request that reads on, each with a descriptor and at most one frame."""
INDEXES: Final = 8
"""Most indexes of sealed files in memory, about 100 KiB each."""


class Retained:
    """The retained files, and the readers that are inside them."""

    def __init__(self, disk: Disk, files: Iterable[LogFile] = ()) -> None:
        self._disk = disk
        self._lock = Lock()
        self._files = list(files)
        self._start = self._start_of(self._files)
        self._parked: OrderedDict[int, LogCursor] = OrderedDict()
        self._indexed: OrderedDict[LogFile, Index] = OrderedDict()
        self._closed = False

    @property
    def first(self) -> int:
        """The position before the first retained event."""
        with self._lock:
            return self._first()

    @property
    def start(self) -> tuple[int, Lull | None]:
        """The position before the first retained event, and the lull that ends there; None for an unreadable lull."""
        with self._lock:
            return self._start

    @property
    def last(self) -> int:
        """The seq of the last event."""
        with self._lock:
            return self._files[-1].last if self._files else NOTHING_YET

    @property
    def size(self) -> int:
        """Bytes of all log files together."""
        with self._lock:
            return sum(file.size for file in self._files)

    def oldest(self) -> LogFile | None:
        """The file that may be removed first; None if only the last file is left."""
        with self._lock:
            return self._files[0] if len(self._files) > 1 else None

    def add(self, file: LogFile, *, in_place: bool = False) -> None:
        """Add a file after the last one; `in_place` replaces the last one."""
        files = [*(self._files[:-1] if in_place else self._files), file]
        start = self._start_of(files) if len(files) == 1 else self._start
        with self._lock:
            self._files, self._start = files, start

    def forget_oldest(self) -> None:
        """The first file is about to be removed; readers inside it can finish it."""
        oldest, *files = self._files
        start = self._start_of(files)
        with self._lock:
            self._files, self._start = files, start
            self._indexed.pop(oldest, None)

    def read(self, after: int, max_events: int, max_bytes: int, until: int) -> LogBatch:
        """Events strictly after `after` and up to `until`, at least one (`LogCursor.take`)."""
        with self._lock:
            cursor = self._parked.pop(after, None) or LogCursor(self._disk, self._locate, after)
        try:
            batch = cursor.take(max_events, max_bytes, until)
        except BaseException:
            cursor.close()
            raise
        self._park(cursor)
        return batch

    def state(self, seq: int) -> SegmentState:
        """The last known state at or before event `seq`: from the index, or from the header of its file."""
        file = self._holding(seq + 1)
        known = self._index(file).state(seq)
        if known is not None:
            return known
        return self._head(file)

    def newest_state(self, holds: Callable[[SegmentState], bool]) -> SegmentState:
        """The last known state for which `holds` is true (`SegmentLog.newest_state`), by a bisection of the files."""
        with self._lock:
            files = list(self._files)

        def over(file: LogFile) -> bool:
            try:
                return not holds(self._head(file))
            except CorruptLog:
                return True  # an earlier start is also correct, and a reader that reaches the damage gets the error

        at = bisect_left(files, True, key=over)
        if not at:
            return self.state(self.first)
        states = list(self._index(files[at - 1]).states)
        known = bisect_left(states, True, key=lambda state: not holds(state))
        return states[known - 1] if known else self._head(files[at - 1])

    def next_state(self, seq: int) -> int | None:
        """The first position from `seq` on whose state is stored, in an index or a header; None if there is none."""
        file = self._holding(seq + 1)
        known = (state.seq for state in self._index(file).states if state.seq >= seq)
        return next(known, file.last if file.sealed else None)

    def close(self) -> None:
        """Close the readers that keep their place."""
        with self._lock:
            self._closed = True
            parked = list(self._parked.values())
            self._parked.clear()
        for cursor in parked:
            cursor.close()

    def _first(self) -> int:
        return self._files[0].base - 1 if self._files else NOTHING_YET

    def _start_of(self, files: Sequence[LogFile]) -> tuple[int, Lull | None]:
        """The value of `start` for these files. Only the writing thread changes them."""
        if not files:
            return NOTHING_YET, None
        first = files[0].base - 1
        try:
            return first, self._checkpoint(files[0]).lull
        except (CorruptLog, HistoryTruncated, OSError):
            return first, None  # a reader that begins there gets the error

    def _head(self, file: LogFile) -> SegmentState:
        """The state before a file's first event, from its header."""
        return self._checkpoint(file).state

    def _checkpoint(self, file: LogFile) -> LogCheckpoint:
        reader = FileReader(self._disk, file, file.start, file.base)
        try:
            return reader.checkpoint()
        finally:
            reader.close()

    def _locate(self, seq: int) -> tuple[LogFile, Index]:
        file = self._holding(seq)
        return file, self._index(file)

    def _holding(self, seq: int) -> LogFile:
        """The file that holds event `seq`, or will hold it."""
        with self._lock:
            if seq <= self._first() or not self._files:
                raise HistoryTruncated(f"event {seq} is gone; the first retained position is {self._first()}")
            return self._files[bisect_right(self._files, seq, key=lambda file: file.base) - 1]

    def _index(self, file: LogFile) -> Index:
        with self._lock:
            index = file.index or self._indexed.get(file)
        if index is None:
            try:
                index = read_index(self._disk, file)
            except FileNotFoundError:
                raise HistoryTruncated(f"events {file.base} to {file.last} are gone") from None
            with self._lock:
                self._indexed[file] = index
                while len(self._indexed) > INDEXES:
                    self._indexed.popitem(last=False)
        return index

    def _park(self, cursor: LogCursor) -> None:
        """Keep the reader for a request that continues where it stopped."""
        unused = []
        with self._lock:
            if cursor.at in self._parked or self._closed:
                unused.append(cursor)
            else:
                self._parked[cursor.at] = cursor
            while len(self._parked) > PARKED:
                unused.append(self._parked.popitem(last=False)[1])
        for one in unused:
            one.close()
