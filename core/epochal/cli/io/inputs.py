"""Records to publish: from arguments, standard input and files, each knowing where it came from.

This module decides what a line, a row or an argument means, and how an error message names a bad one.
"""

import asyncio
import json
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.cli.io.output import json_value
from epochal.cli.io.output import rows as batch_rows
from epochal.client.encoding.arrow_schemas import pyarrow
from epochal.errors import RecordTypeError

CHUNK_BYTES = 1 << 16
CHUNK_ROWS = 4096
MAX_LINE = 1 << 26
"""Bytes of one line, at most; a payload holds 64 MiB."""
STDIN = "standard input"
TABLES = (".parquet", ".arrow", ".feather")
_OTHER_FORMATS = {
    ".csv": "rows of text", ".tsv": "rows of text", ".xlsx": "a spreadsheet", ".avro": "Avro", ".orc": "ORC",
    ".gz": "packed", ".zst": "packed", ".bz2": "packed", ".xz": "packed", ".zip": "packed",
}  # fmt: skip
"""Endings of files that are not read, and what such files hold."""


@dataclass(frozen=True, slots=True)
class Item:
    """One record and where it was read: `flights.jsonl:17`, from 1."""

    source: str
    number: int
    record: Any

    @property
    def where(self) -> str:
        """How messages name this record."""
        return f"{self.source}:{self.number}"


@dataclass(frozen=True, slots=True)
class Source:
    """One input. `chunks()` reads it from its start; `again`: whether it can be read twice; `size`: bytes, if known."""

    name: str
    chunks: Callable[[], AsyncIterator[list[Item]]]
    again: bool
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Parse:
    """Makes a record of a line or an argument; raises ValueError with the reason."""

    parse: Callable[[bytes], Any]
    skips_blank: bool = False
    takes_any_file: bool = False
    """Whether a line may be anything, so that no file holds another format."""

    def __call__(self, text: bytes) -> Any:
        """The record."""
        return self.parse(text)


def line_parser(encoding: str, *, as_text: bool) -> Parse:
    """The parser of lines and arguments for a stream of `encoding`: JSON, text or bytes.

    Raises `RecordTypeError` for texts where the encoding cannot carry them.
    """
    if encoding == "bytes":
        return Parse(lambda line: line, takes_any_file=True)
    if as_text:
        if encoding == "arrow":
            raise RecordTypeError("this stream's encoding is arrow: a record is a row, so a line is a JSON object")
        return Parse(lambda line: line.decode(), takes_any_file=True)
    if encoding == "arrow":
        return Parse(lambda line: _row(_json(line)), skips_blank=True)
    return Parse(_json, skips_blank=True)


def _row(record: Any) -> Any:
    if not isinstance(record, dict):
        raise ValueError("is no JSON object, and a record of an arrow stream is a row")
    return record


def _json(line: bytes) -> Any:
    text = line.decode()  # a UnicodeDecodeError is a ValueError
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = (
            f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
        )
        raise ValueError(f"is not JSON: {reason}; --text publishes texts as they are") from None


def bad(item: Item, reason: str) -> RecordTypeError:
    """The error that names a record."""
    return RecordTypeError(f"{item.where}: {reason}")


# ---- sources ----


def open_sources(records: Sequence[str], files: Sequence[str], parse: Parse, encoding: str) -> list[Source]:
    """The inputs in order: arguments, then files; standard input if there are neither. Raises `OSError`."""
    sources: list[Source] = []
    if records:
        sources.append(Source("argument", lambda: _arguments(records, parse), again=True))
    chosen = files or ([] if records else ["-"])
    return [*sources, *(_file(name, parse, encoding) for name in chosen)]


def _file(name: str, parse: Parse, encoding: str) -> Source:
    if name == "-":
        return Source(STDIN, lambda: _lines(STDIN, sys.stdin.fileno, parse), again=False)
    path = Path(name)
    status = path.stat()
    regular = stat.S_ISREG(status.st_mode)
    if path.suffix in TABLES:
        if encoding == "bytes":
            raise RecordTypeError(f"{name} holds rows, and this stream's records are bytes")
        return Source(name, lambda: _rows(path, encoding == "arrow"), again=regular)
    if not parse.takes_any_file and (held := _OTHER_FORMATS.get(path.suffix.lower())) is not None:
        unpack = f"zcat {name}" if path.suffix == ".gz" else "what makes lines of it"
        raise RecordTypeError(
            f"{name}: by its name it is {held}, which is not read here; read are lines of JSON and {', '.join(TABLES)}."
            f" Pipe it: {unpack} | epochal pub ... -f -"
        )
    size = status.st_size if regular else None
    return Source(name, lambda: _lines(name, lambda: os.open(path, os.O_RDONLY), parse), regular, size)


async def _arguments(records: Sequence[str], parse: Parse) -> AsyncIterator[list[Item]]:
    """All arguments, as one group."""
    yield [_item("argument", number, os.fsencode(text), parse) for number, text in enumerate(records, 1)]


async def _lines(name: str, opened: Callable[[], int], parse: Parse) -> AsyncIterator[list[Item]]:
    """The lines of a file in groups, as they come; the last may lack its newline.

    Before `RecordTypeError` is raised for a bad line, those before it are yielded.
    """
    number, rest = 0, b""
    async with aclosing(_read(opened())) as chunks:
        async for chunk in chunks:
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            if not chunk and rest:
                lines.append(rest)
            items, failed = _items(name, number, lines, parse)
            number += len(lines)
            if items:
                yield items
            if failed is None and len(rest) > MAX_LINE:
                failed = bad(Item(name, number + 1, None), f"is longer than {MAX_LINE} bytes")
            if failed is not None:
                raise failed


def _items(name: str, before: int, lines: list[bytes], parse: Parse) -> tuple[list[Item], RecordTypeError | None]:
    """The records of some lines up to the first bad one, and what is wrong with that."""
    items: list[Item] = []
    for number, line in enumerate(lines, before + 1):
        if parse.skips_blank and not line.strip():
            continue
        try:
            items.append(_item(name, number, line, parse))
        except RecordTypeError as error:
            return items, error
    return items, None


def _item(source: str, number: int, line: bytes, parse: Parse) -> Item:
    item = Item(source, number, None)
    try:
        return Item(source, number, parse(line))
    except UnicodeDecodeError:
        raise bad(item, "is no text in UTF-8") from None
    except ValueError as error:
        raise bad(item, str(error)) from None


async def _read(fd: int) -> AsyncGenerator[bytes]:
    """The chunks that are read from `fd`; the last one is empty.

    Read in a daemon thread, since a file cannot be waited for and a terminal must not hold up Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=4)

    def read() -> None:
        chunk: bytes | OSError = b"?"
        while isinstance(chunk, bytes) and chunk:
            try:
                chunk = os.read(fd, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            handing_over = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(handing_over, loop).result()
            except (RuntimeError, CancelledError):  # the loop has ended, or is about to
                handing_over.close()
                break
        if fd > 2:
            os.close(fd)

    threading.Thread(target=read, name="read", daemon=True).start()
    chunk: bytes | OSError = b"?"
    while chunk:
        chunk = await chunks.get()
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


async def _rows(path: Path, as_arrow: bool) -> AsyncIterator[list[Item]]:
    """The rows of a Parquet or Arrow file as dicts; dates and the like as texts, unless the stream is Arrow too."""
    number = 0
    for batch in _batches(path):
        try:
            read = list(batch_rows([batch], exact=True))
        except (ValueError, OverflowError) as error:
            reason = (
                f"this row, or one of the {batch.num_rows - 1} after it, holds what Python has no value for: {error}"
            )
            raise bad(Item(str(path), number + 1, None), reason) from None
        rows = read if as_arrow else [_plain(row) for row in read]
        yield [Item(str(path), number + offset, row) for offset, row in enumerate(rows, 1)]
        number += len(rows)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case dict():
            return {name: _plain(member) for name, member in value.items()}
        case list():
            return [_plain(member) for member in value]
        case _:
            return json_value(value)


def _batches(path: Path) -> Iterator[Any]:
    pa = pyarrow()
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(CHUNK_ROWS)
            return
        with pa.memory_map(str(path)) as mapped:
            for batch in _arrow_batches(pa, mapped):
                for start in range(0, batch.num_rows, CHUNK_ROWS):
                    yield batch.slice(start, CHUNK_ROWS)
    except pa.ArrowInvalid as error:
        raise RecordTypeError(f"{path} is no {path.suffix.removeprefix('.')} file: {error}") from None


def _arrow_batches(pa: Any, mapped: Any) -> Iterator[Any]:
    """The batches of an Arrow file in the file format or the stream format."""
    try:
        reader = pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        yield from pa.ipc.open_stream(mapped)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
