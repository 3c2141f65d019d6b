"""What `epochal sub` prints: one line a record, or one JSON object a line.

This is the form that scripts read.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

import epochal
from epochal.catalog_api.texts import show_time
from epochal.cli.io.output import deeper, dumps, json_value, raw_record, rows, show_frontier, show_record
from epochal.cli.io.terminal import note
from epochal.client.tracing import traceparent
from epochal.protocol.times import to_json


class Style(Enum):
    """How a record is printed."""

    TEXT = auto()
    JSON = auto()
    RAW = auto()


class Printer:
    """Prints items in whole lines; `done` once `count` records, or epochs, were shown."""

    def __init__(self, style: Style, count: int | None) -> None:
        self._style = style
        self._count = count
        self._frontier: tuple[Any, ...] | None = None
        self.shown = 0
        """Records, or epochs, so far."""
        self.unreadable = 0
        """Batches, or epochs, that could not be shown."""

    @property
    def counts(self) -> bool:
        """Whether a count of items was asked for."""
        return self._count is not None

    @property
    def left(self) -> int:
        """How many items are still missing; 0 without a count."""
        return 0 if self._count is None else max(self._count - self.shown, 0)

    @property
    def done(self) -> bool:
        """Whether that count is reached."""
        return self._count is not None and self.left == 0

    def show(self, item: Any) -> None:
        """Print one item of `epochs()` or `events()`; a frontier only if it has moved."""
        if isinstance(item, epochal.FrontierChanged):
            if item.frontier == self._frontier:
                return
            self._frontier = item.frontier
        if isinstance(item, epochal.Epoch):
            self._epoch(item)
        elif isinstance(item, epochal.Data):
            self._data(item)
        elif self._style is Style.JSON:
            self._write([dumps(_other_json(item))])
        else:
            note(_other_text(item))

    def _epoch(self, epoch: epochal.Epoch) -> None:
        def lines() -> list[str | bytes]:
            records = list(rows(epoch.records()))
            if self._style is not Style.JSON:
                return [self._line(epoch, record) for record in records]
            shown = [json_value(record) for record in records]
            return [dumps({"kind": "epoch", "time": to_json(epoch.time), "records": shown})]

        if not self._write_readable(lines, {"time": to_json(epoch.time)}, f"epoch {show_time(epoch.time)}"):
            return
        if self._style is not Style.JSON:
            note(f"epoch {show_time(epoch.time)} complete")
        self.shown += 1

    def _data(self, data: epochal.Data) -> None:
        where = {"topic": json_value(data.topic), "segment": data.segment, "seq": data.seq}
        shown: list[Any] = []

        def lines() -> list[str | bytes]:
            records = list(rows(data.records()))
            shown[:] = records if self._count is None else records[: self.left]
            if self._style is not Style.JSON:
                return [self._line(data, record) for record in shown]
            values = [json_value(record) for record in shown]
            return [dumps({"kind": "data", "time": to_json(data.time), **where, **_beside(data), "records": values})]

        name = f"the batch of segment {data.segment}, seq {data.seq}, at time {show_time(data.time)}"
        if self._write_readable(lines, {"time": to_json(data.time), **where}, name):
            self.shown += len(shown)

    def _write_readable(self, lines: Callable[[], list[str | bytes]], where: dict[str, Any], name: str) -> bool:
        """Write the lines of an item. If its records cannot be read, say so, and go on with the next item."""
        try:
            try:
                made = lines()
            except RecursionError:
                with deeper():
                    made = lines()
        except Exception as error:  # the next item may be readable
            self.unreadable += 1
            if self._style is Style.JSON:
                self._write([dumps({"kind": "unreadable", **where, "reason": str(error)})])
            else:
                note(f"{name} cannot be shown: {error}")
            return False
        self._write(made)
        return True

    def _line(self, item: Any, record: Any) -> bytes:
        if self._style is Style.RAW:
            return raw_record(record)
        return f"{show_time(item.time)}\t{show_record(record)}".encode("utf-8", "backslashreplace")

    def _write(self, lines: Iterable[str | bytes]) -> None:
        """Write all lines of an item at once, so that an interruption leaves no half of one."""
        encoded = (line.encode("utf-8", "backslashreplace") if isinstance(line, str) else line for line in lines)
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in encoded))
        sys.stdout.buffer.flush()


def _beside(data: epochal.Data) -> dict[str, Any]:
    """The optional fields of a batch that it has."""
    fields: dict[str, Any] = {}
    if data.key is not None:
        fields["key"] = json_value(data.key)
    if data.published is not None:
        fields["published"] = data.published
    if data.headers:
        fields["headers"] = json_value(data.headers)
    if data.trace is not None:
        fields["traceparent"] = traceparent(data.trace)
    return fields


def _other_json(item: Any) -> dict[str, Any]:
    match item:
        case epochal.EpochAborted():
            return {"kind": "aborted", "time": to_json(item.time)}
        case epochal.FrontierChanged():
            return {"kind": "frontier", "frontier": [to_json(time) for time in sorted(item.frontier)]}
        case _:
            return {"kind": _kind(item), **dataclasses.asdict(item)}


def _other_text(item: Any) -> str:
    match item:
        case epochal.EpochAborted():
            return f"epoch {show_time(item.time)} aborted: it will never be complete"
        case epochal.FrontierChanged():
            return f"frontier {show_frontier(item.frontier)}" + ("" if item.frontier else ": the stream is complete")
        case epochal.Gap():
            where = f"segment {item.segment}, incarnation {item.incarnation}, seq {item.seq}"
            below = f", also of epochs <= {' or '.join(map(show_time, item.below))}" if item.below else ""
            return f"gap: {where}: events were lost for good{below}"
        case _:
            fields = ", ".join(f"{key} {value}" for key, value in dataclasses.asdict(item).items())
            return f"{_kind(item)}: {fields}"


def _kind(item: object) -> str:
    """`segment-down` of `SegmentDown`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", type(item).__name__).lower()
