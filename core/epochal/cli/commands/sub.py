"""`epochal sub`: print what a stream delivers.

The client's subscriber does the work, and `printer` formats the lines. This module decides when to begin and to end.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import epochal
from epochal.cli.connections import connected, open_catalog
from epochal.cli.cursor_files import check_cursor_file, read_since_option, save_cursor
from epochal.cli.io.output import show_some
from epochal.cli.io.printer import Printer, Style
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, NamespaceOption, StreamArgument, Timeout
from epochal.cli.target import run
from epochal.cli.tracing import telemetry
from epochal.errors import EpochalError, TimedOut
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.transport.shutdown import ended
from epochal.transport.sockets import check_libzmq

EPILOG = """\b
Examples:
  epochal sub demo/flights                          # from now on
  epochal sub demo/flights --since start --epochs   # whole epochs, all
  epochal sub demo/flights --epochs --json | jq .time
  epochal sub demo/flights --topic delay/ --reject delay/EWR
  epochal sub demo/flights --since start --count 1 --idle 10
  epochal sub demo/flights --epochs --count 5 --save-cursor at.json
  epochal sub demo/flights --since at.json --epochs # after these five
  epochal sub demo/flights --since time:17 --epochs # what is not <= 17
  epochal sub demo/flights --via relay:eu           # by relays alone

A line holds the time, a tab, and the record as JSON; what is not a record (frontiers, aborted epochs, gaps) goes to
standard error. With --json everything is one JSON object a line, by "kind":

\b
  data      {"time", "topic", "segment", "seq", "records": [...]}, and where
            the writer gave them "key", "published", "headers", "traceparent"
  epoch     {"time", "records": [...]}   with --epochs, in place of data
  aborted   {"time"}                     the epoch will never be complete
  frontier  {"frontier": [...]}          the least times that can still come;
                                         none: the stream is complete
  gap       {"segment", "incarnation", "seq", "below"}
                                         events were lost for good
  unreadable  {"time", "reason"}         not of the stream's encoding; of a
                                         batch also "topic", "segment", "seq"
  rewound, segment-down, segment-up      what became of a segment's connection

Bytes are shown as text with escapes, and untouched with --raw; rows of Arrow batches are records. Ends when the stream
is complete, after --count, or when the reader of the output goes. The cursor is written at every end, also by Ctrl-C,
SIGTERM or SIGHUP; epochs that were not complete then come again, whole.

--since takes start (all that is retained), time:T (the epochs that are not <= T), frontier:[T,...] (those that one
of these reaches), seq:N (after event N of a stream of one segment), cut:{"SEGMENT":N,...} (after an event in each),
or the file of a cursor. What is no longer retained is an error."""


SAY_AFTER = 3.0
"""Seconds without an epoch after which standard error says what the command waits for."""
GAPS_AFTER = 0.2
"""Seconds between checks for gaps while no epoch comes."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What to read, and until when."""

    since: str | epochal.Cursor | None
    topics: list[bytes] | None
    reject: list[bytes]
    epochs: bool
    idle: float | None
    save: Path | None
    poll: float | None
    via: epochal.Via


def sub(
    stream: StreamArgument,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHERE", help="start, time:T, frontier:[T,...], seq:N, cut:{SEGMENT:N,...}: "
                     "history first; or a saved cursor's file."),
    ] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="Print only complete epochs, each as a whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the records, as they were published.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N records, or N epochs with --epochs.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option("--idle", metavar="SECONDS", min=0, help="End when nothing came for that long, counted from when "
                     "all segments are joined; status 4 if fewer than --count came."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="PREFIX", help="Only topics with this prefix. Repeatable.", show_default=False),
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option("--reject", metavar="PREFIX", help="No topics with this prefix; the longest matching prefix "
                     "decides. Repeatable.",
                     show_default=False),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save-cursor", metavar="FILE", help="At the end write the cursor to this file, "
                                  "for --since.")
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option("--poll", metavar="SECONDS", min=0.01, help="Ask for events at this interval, instead of having "
                     "them pushed."),
    ] = None,
    via: Annotated[
        str,
        typer.Option("--via", metavar="WAY", help="auto, direct (from the publishers), relay or relay:NAME (never from "
                     "the publishers)."),
    ] = "auto",
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:  # fmt: skip
    """Subscribe to a stream and print what it delivers."""
    if as_json and raw:
        raise typer.BadParameter("--json and --raw exclude each other")
    name = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    topics = [os.fsencode(one) for one in topic] if topic else None  # also bytes that are not UTF-8
    rejected = [os.fsencode(one) for one in reject or ()]
    way = epochal.Via.parse(via)
    if save is not None:
        check_cursor_file(save)
    choice = _Choice(read_since_option(since), topics, rejected, epochs, idle, save, poll, way)
    printer = Printer(Style.JSON if as_json else Style.RAW if raw else Style.TEXT, count)
    with telemetry() if epochs else contextlib.nullcontext():
        run(_sub(name, choice, printer, catalog, timeout))
    if printer.unreadable:
        what = "epochs" if epochs else "batches"
        raise EpochalError(f"{printer.unreadable} {what} could not be shown; the others were")


async def _sub(name: tuple[str, str], choice: _Choice, printer: Printer, url: str | None, timeout: float) -> None:
    check_libzmq()
    async with open_catalog(url, timeout) as catalog:  # also waits for a catalog that does not answer, and says so
        await catalog.get(*name)
    async with (
        _waits_said("/".join(name), printer, url, timeout) if choice.epochs else contextlib.nullcontext(),
        _reader_watched() as unwatch,
        connected(url, timeout) as client,
        client.subscribe(
            "/".join(name),
            since=choice.since,
            topics=choice.topics,
            reject=choice.reject,
            push=choice.poll is None,
            poll=choice.poll,
            via=choice.via,
        ) as subscription,
    ):
        try:
            async with contextlib.aclosing(_until_idle(subscription, choice, printer, timeout)) as items:
                async for item in items:
                    with item.processing() if isinstance(item, epochal.Epoch) else contextlib.nullcontext():
                        printer.show(item)
                    if printer.done:
                        break
        finally:
            unwatch()  # leaving must not be interrupted
            if choice.save is not None:
                save_cursor(choice.save, subscription)


async def _until_idle(subscription: Any, choice: _Choice, printer: Printer, timeout: float) -> AsyncGenerator[Any]:
    """The items; ends, or raises `TimedOut` when --count is not reached, once no record came for `idle` seconds.

    These count from the last record or, before that, from when the subscription was ready: a slow machine, or a
    publisher that is just starting, does not make a stream idle. Raises `TimedOut` if it is not ready in `timeout`.
    """
    loop, idle = asyncio.get_running_loop(), choice.idle
    shown = printer.shown
    counting = None
    try:
        async with asyncio.timeout(None if idle is None else timeout) as limit:

            async def count_from_ready(idle: float) -> None:
                await subscription.ready.wait()
                limit.reschedule(loop.time() + idle)

            if idle is not None:
                counting = asyncio.create_task(count_from_ready(idle))
            async for item in _epochs(subscription, printer) if choice.epochs else subscription.events():
                yield item
                if idle is not None and subscription.ready.is_set() and printer.shown > shown:
                    shown = printer.shown
                    limit.reschedule(loop.time() + idle)
    except TimeoutError:
        if not subscription.ready.is_set():
            raise TimedOut(f"not every segment could be joined within {timeout:g} s") from None
        if printer.counts:
            what = "epochs" if choice.epochs else "records"
            raise TimedOut(
                f"{printer.shown} of {printer.shown + printer.left} {what} came, then none for {choice.idle:g} s"
            ) from None
    finally:
        if counting is not None:
            await ended([counting])


async def _epochs(subscription: epochal.Subscription, printer: Printer) -> AsyncGenerator[Any]:
    """The epochs; gaps are printed when they are found, before the epochs that come after them (E17)."""
    epochs = subscription.epochs()
    while True:
        try:
            async with asyncio.timeout(GAPS_AFTER):
                epoch = await anext(epochs)
        except TimeoutError:
            continue  # nothing is lost: the next read returns the epoch
        except StopAsyncIteration:
            return
        finally:
            for gap in subscription.gaps():
                printer.show(gap)
        yield epoch


@contextlib.asynccontextmanager
async def _waits_said(stream: str, printer: Printer, url: str | None, timeout: float) -> AsyncIterator[None]:
    """Say on standard error who keeps epochs from completing, when none was shown for `SAY_AFTER` seconds."""

    async def say() -> None:
        said: list[tuple[Any, ...]] = []
        async with open_catalog(url, timeout) as catalog:
            while True:
                shown = printer.shown
                await asyncio.sleep(SAY_AFTER)
                if printer.shown > shown:
                    continue
                with contextlib.suppress(EpochalError):  # the subscription itself says what is wrong
                    held_back = (await catalog.get(*stream.split("/"))).held_back
                    who = [(held.segment, held.time, held.kind, held.writer) for held in held_back]
                    if who and who != said:  # only when it changes
                        words = show_some([held.words for held in held_back])
                        note(f"waiting for the next complete epoch: {words}")
                        said = who

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        await ended([saying])


@contextlib.asynccontextmanager
async def _reader_watched() -> AsyncIterator[Callable[[], object]]:
    """End by `BrokenPipeError` as soon as the reader of our output has gone, also while there is nothing to print.

    Yields a function that ends the watch before the block does.
    """
    if not _is_pipe(sys.stdout):
        yield lambda: None
        return
    loop, task, gone = asyncio.get_running_loop(), asyncio.current_task(), False
    fd = sys.stdout.fileno()

    def lose() -> None:
        nonlocal gone
        gone = True
        loop.remove_reader(fd)
        if task is not None:
            task.cancel()

    loop.add_reader(fd, lose)  # a pipe's writing end is never readable; it only ever reports that no one reads
    try:
        yield lambda: loop.remove_reader(fd)
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(fd)


def _is_pipe(file: Any) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError):  # standard output may be closed, or not a file
        return False
