"""`epochal sub`: print what a stream delivers.

Apart from the client's subscriber, which does all of the work: here are only text and the count.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import epochal
from epochal.cli.options import DEFAULT_TIMEOUT, Catalog, Namespace, Timeout, note, open_catalog, run
from epochal.cli.output import show_frontier, show_time
from epochal.cli.records import json_value, raw_record, show_record
from epochal.client.catalog import catalog_url
from epochal.errors import CursorError
from epochal.protocol.times import to_json
from epochal.resources import DEFAULT_NAMESPACE, parse_stream_name

EPILOG = """\b
Examples:
  epochal sub demo/flights                              # from now on, as records come
  epochal sub demo/flights --since start --epochs       # only whole epochs, from the start
  epochal sub demo/flights --epochs --json | jq .time
  epochal sub demo/flights --count 100 --save at.json; epochal sub demo/flights --since at.json

A line holds the time, a tab, and the record. With --json a line is a JSON object: {"kind": "data", "time", "topic",
"records"}, or with --epochs {"kind": "epoch", "time", "records"}; other kinds tell of frontiers, aborted epochs and
gaps, which without --json go to standard error. Ends when the stream is complete."""


def sub(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="NAME or NS/NAME.")],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="start|FILE", help="Retained history first, or after a saved cursor."),
    ] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="Only epochs that are complete, each whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Records alone, as they were published.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N records, or N epochs with --epochs.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="At the end write the cursor, for --since.")
    ] = None,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Subscribe to a stream and print what comes."""
    if as_json and raw:
        raise typer.BadParameter("--json and --raw exclude each other")
    name = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    printer = _Printer(_json_line if as_json else _raw_line if raw else _text_line, as_json, count)
    run(_sub(name, _since(since), epochs, printer, save, catalog, timeout))


def _since(text: str | None) -> Literal["start"] | epochal.Cursor | None:
    if text is None:
        return None
    if text == "start":
        return "start"
    try:
        saved = Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CursorError(f"{text} does not hold a cursor; write one with: epochal sub STREAM --save FILE") from None
    return epochal.Cursor.from_json(saved)


async def _sub(
    name: tuple[str, str],
    since: Any,
    epochs: bool,
    printer: "_Printer",
    save: Path | None,
    url: str | None,
    timeout: float,
) -> None:
    async with open_catalog(url, timeout) as catalog:  # also the place where a missing catalog is waited for and told
        await catalog.get(*name)
    async with (
        epochal.connect(catalog_url(url), patience=timeout) as client,
        client.subscribe("/".join(name), since=since) as subscription,
    ):
        try:
            async for item in subscription.epochs() if epochs else subscription.events():
                printer.show(item)
                if printer.done:
                    break
        finally:
            if save is not None:
                _write_file(save, subscription.cursor().to_json())


def _write_file(path: Path, text: str) -> None:
    """Replace the file as a whole: an interruption leaves the old cursor or the new one, never half of one."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


class _Printer:
    """Prints items; `done` once `count` of them were shown."""

    def __init__(self, line: Callable[[Any, Any], str | bytes], as_json: bool, count: int | None) -> None:
        self._line = line
        self._as_json = as_json
        self._left = count

    @property
    def done(self) -> bool:
        return self._left is not None and self._left <= 0

    def show(self, item: Any) -> None:
        """One item of `epochs()` or `events()`."""
        if isinstance(item, epochal.Epoch):
            self._show_records(item, "epoch", list(item.records()))
            if not self._as_json:
                note(f"epoch {show_time(item.time)} complete")
            self._take(1)
        elif isinstance(item, epochal.Data):
            records = list(item.records())
            shown = records if self._left is None else records[: self._left]
            self._show_records(item, "data", shown)
            self._take(len(shown))
        elif self._as_json:
            _write(json.dumps(_other_json(item)))
        else:
            note(_other_text(item))
        sys.stdout.buffer.flush()

    def _show_records(self, item: Any, kind: str, records: list[Any]) -> None:
        if self._as_json:
            fields: dict[str, Any] = {"kind": kind, "time": to_json(item.time)}
            if kind == "data":
                fields["topic"] = json_value(item.topic)
            _write(json.dumps({**fields, "records": [json_value(record) for record in records]}, ensure_ascii=False))
            return
        for record in records:
            _write(self._line(item, record))

    def _take(self, number: int) -> None:
        if self._left is not None:
            self._left -= number


def _write(line: str | bytes) -> None:
    sys.stdout.buffer.write((line.encode("utf-8", "backslashreplace") if isinstance(line, str) else line) + b"\n")


def _text_line(item: Any, record: Any) -> str:
    return f"{show_time(item.time)}\t{show_record(record)}"


def _raw_line(_: Any, record: Any) -> bytes:
    return raw_record(record)


def _json_line(_: Any, record: Any) -> str:
    return show_record(record)


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
            return f"frontier {show_frontier(item.frontier)}"
        case _:
            fields = ", ".join(f"{key} {value}" for key, value in dataclasses.asdict(item).items())
            return f"{_kind(item)}: {fields}"


def _kind(item: object) -> str:
    """`segment-down` of `SegmentDown`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", type(item).__name__).lower()
