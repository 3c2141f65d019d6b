"""`epochal pub`: publish records from the command line or from standard input.

Apart from the client's writer, which does all of the work: here are only text and the end of input.
"""

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import typer

import epochal
from epochal.cli.options import DEFAULT_TIMEOUT, Catalog, Namespace, Timeout, open_catalog, run
from epochal.cli.records import parse_record, parse_time
from epochal.client.catalog import catalog_url
from epochal.protocol.times import Time
from epochal.resources import DEFAULT_NAMESPACE, parse_stream_name

EPILOG = """\b
Examples:
  epochal pub demo/flights --time 5 --key JFK '{"delay": 12}' '{"delay": 3}'
  journalctl -f | epochal pub logs --time 0
  epochal pub demo/flights --time 5 --advance 6 '{"delay": 1}'   # and no more from this writer before 6
  epochal pub demo/flights --finish                              # no more, ever

A record is a line of text (encoding bytes) or a JSON value; what is no JSON is published as a text. Without RECORD, and
with --time, records are the lines of standard input. The command ends once all of them are acknowledged."""


def pub(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="NAME or NS/NAME.")],
    records: Annotated[list[str] | None, typer.Argument(metavar="[RECORD]...", show_default=False)] = None,
    time: Annotated[
        str | None, typer.Option("--time", "-t", metavar="T", help="Of all records: 5 or '(5, 1)'.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="K", help="Records of one key stay in order.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="By which subscribers choose.")] = "",
    writer: Annotated[
        str | None,
        typer.Option("--writer", metavar="ID", help="Of the writer; a fresh one by default.", show_default=False),
    ] = None,
    advance: Annotated[
        str | None, typer.Option("--advance", metavar="T", help="Then promise no more at times that are not >= T.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="Then promise no more at all.")] = False,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Publish records to a stream."""
    if time is None and (records or not (finish or advance)):
        raise typer.BadParameter("records need a time: --time T")
    qualified = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    placing = {"key": None if key is None else key.encode(), "topic": topic.encode()}
    writer_id = writer or f"pub-{uuid.uuid4().hex[:12]}"
    run(_pub(qualified, records or [], time, placing, writer_id, advance, finish, catalog, timeout))


async def _pub(
    name: tuple[str, str],
    records: Sequence[str],
    time: str | None,
    placing: dict[str, Any],
    writer_id: str,
    advance: str | None,
    finish: bool,
    url: str | None,
    timeout: float,
) -> None:
    async with open_catalog(url, timeout) as catalog:  # also the place where a missing catalog is waited for and told
        declared = (await catalog.get(*name)).declared().spec
    shape, encoding = declared.time.shape, declared.payload.encoding
    at = None if time is None else parse_time(time, shape)
    then = None if advance is None else parse_time(advance, shape)
    async with (
        epochal.connect(catalog_url(url), patience=timeout) as client,
        client.writer("/".join(name), writer_id=writer_id) as writer,
    ):
        if at is not None:
            await _append(writer, at, records, encoding, placing)
        if then is not None:
            await writer.advance(then)
        if finish:
            await writer.finish()


async def _append(writer: Any, at: Time, records: Sequence[str], encoding: str, placing: dict[str, Any]) -> None:
    if records:
        await writer.append(at, [parse_record(record, encoding) for record in records], **placing)
        return
    async for lines in _stdin_lines():
        await writer.append(at, [parse_record(line, encoding) for line in lines], **placing)


async def _stdin_lines() -> AsyncIterator[list[str]]:
    """Lines of standard input in groups, as they come; the last may lack its end.

    Read in a daemon thread, since a file cannot be waited for and a terminal must not hold up Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        while True:
            chunk = os.read(sys.stdin.fileno(), 1 << 16)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # the loop has ended
            if not chunk:
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.decode("utf-8", "replace") for line in lines]
    if rest:
        yield [rest.decode("utf-8", "replace")]
