"""`epochal pub`: publish records from arguments, standard input and files.

`inputs` reads, and `sender` gives each record its time and sends it. This module calls them in order, and prints the
summary at the end.
"""

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from epochal.catalog_api.texts import show_time
from epochal.cli.connections import connected, open_catalog
from epochal.cli.failures import ExitStatus
from epochal.cli.io.holders import REPORTED_WITHIN, in_words, who_holds
from epochal.cli.io.inputs import STDIN, Source, line_parser, open_sources
from epochal.cli.io.output import parse_time
from epochal.cli.io.sender import Counter, Interrupted, RecordGroup, RecordPlacement, RecordSender, encode
from epochal.cli.io.signals import leaving
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, NamespaceOption, StreamArgument, Timeout
from epochal.cli.target import run
from epochal.cli.tracing import SendSpans, telemetry
from epochal.cli.waits import answers_awaited
from epochal.client.encoding.record_checks import record_checks
from epochal.errors import EpochalError, TimeShapeError, UsageError
from epochal.protocol.times import Time, TimeShape, less_equal
from epochal.protocol.wire import MAX_KEY, MAX_TOPIC
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.transport.sockets import check_libzmq

EPILOG = """\b
Examples:
  epochal pub demo/flights --time 5 --key JFK '{"delay": 12}' --advance 6
  epochal pub demo/flights -f flights.jsonl --time-field hour --in-order
  epochal pub demo/flights -f x.parquet --time-field hour --key-field origin
  journalctl -f -o json | epochal pub logs --time 0 --linger 0.2
  tail -f x.jsonl | epochal pub demo/flights --time-field hour --wait
  epochal pub demo/flights --finish                   # no more, ever

A record of a msgpack or json stream is a JSON value: an argument, a line, or a row of a .parquet, .arrow or .feather
file; with --text, arguments and lines are texts as they are. In a bytes stream a record is the line as it is; in an
arrow stream an object or a row. Where the stream declares fields, records have these and no others. Without RECORD and
FILE, records are the lines of standard input.

An epoch is complete once no writer holds its time: --advance T promises no more before T, --in-order promises that no
line has a time before that of the line above, --finish promises no more at all. Without any of them, what was published
waits for the next writer's promise.

Arguments and files are checked completely before anything is published. A bad line of standard input ends the
command with status 2 when the lines before it are published; a line on standard error says which. Ctrl-C, SIGTERM and
SIGHUP end it in the same way, with 128 and the signal's number; a second one at once. None of them advances or
finishes. The command ends once everything is acknowledged; --wait has each record acknowledged before the next is sent,
and prints a line of JSON for it: where it was read, its time and its position."""


@dataclass(frozen=True, slots=True)
class _Options:
    """The options as the user gave them."""

    time: str | None
    time_field: str | None
    key: str | None
    key_field: str | None
    topic: str
    headers: dict[bytes, bytes]
    clock: bool
    text: bool
    in_order: bool
    advance: str | None
    finish: bool
    linger: float
    wait: bool
    quiet: bool


def pub(
    stream: StreamArgument,
    records: Annotated[
        list[str] | None, typer.Argument(metavar="RECORD", help="Records, one per argument.", show_default=False)
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Lines, or rows of .parquet, .arrow, .feather; - is "
                     "standard input. Repeatable.", show_default=False),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Lines and arguments are texts, not JSON.")] = False,
    time: Annotated[
        str | None, typer.Option("--time", "-t", metavar="T", help="The time of all records: 5 or '(5, 1)'.")
    ] = None,
    time_field: Annotated[
        str | None, typer.Option("--time-field", metavar="NAME", help="The field that holds a record's time.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="K", help="The key of all records; records with the same key "
                                 "stay in order.")
    ] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", metavar="NAME", help="The field that holds a record's key.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic of all records, by which "
                                       "subscribers filter.")] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header of all records. Repeatable.", show_default=False),
    ] = None,
    clock: Annotated[bool, typer.Option("--clock", help="Send this machine's wall clock with the records.")] = False,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Times never go back: each new one completes those before it.")
    ] = False,
    advance: Annotated[
        str | None, typer.Option("--advance", metavar="T", help="At the end promise no more records at times that are "
                                 "not >= T.")
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", "--complete", help="At the end promise no more records at all; when every "
                           "writer has, the stream is complete.")
    ] = False,
    writer: Annotated[
        str | None,
        typer.Option("--writer", metavar="ID", help="The writer's id; a fresh one by default.", show_default=False),
    ] = None,
    linger: Annotated[
        float, typer.Option("--linger", metavar="SECONDS", min=0, max=60, help="How long records may wait to be "
                            "batched.")
    ] = 0.0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Have each record acknowledged before the next is sent, and print its "
                           "position. Without it they are pipelined, and awaited at the end.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no summary.")] = False,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> int:  # fmt: skip
    """Publish records to a stream."""
    if time is not None and time_field is not None:
        raise typer.BadParameter("--time and --time-field exclude each other")
    if key is not None and key_field is not None:
        raise typer.BadParameter("--key and --key-field exclude each other")
    if wait and linger:
        raise typer.BadParameter("--wait and --linger exclude each other: nothing can gather then")
    publishes = bool(records or files) or not (finish or advance)
    if publishes and time is None and time_field is None:
        raise typer.BadParameter("records need a time: --time T, or --time-field NAME")
    options = _Options(
        time, time_field, key, key_field, topic, _headers(header), clock, text, in_order, advance, finish, linger, wait,
        quiet,
    )  # fmt: skip
    qualified = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    inputs = _Inputs(records or [], files or [], publishes or time is not None or time_field is not None)
    with telemetry():
        return run(_pub(qualified, inputs, options, writer or f"pub-{uuid.uuid4().hex[:12]}", catalog, timeout))


@dataclass(frozen=True, slots=True)
class _Inputs:
    records: Sequence[str]
    files: Sequence[str]
    any: bool


async def _pub(
    name: tuple[str, str], inputs: _Inputs, options: _Options, writer_id: str, url: str | None, timeout: float
) -> int:
    check_libzmq()
    async with open_catalog(url, timeout) as catalog:  # also waits for a catalog that does not answer, and says so
        declared = (await catalog.get(*name)).declared().spec
    shape, encoding = declared.time.shape, declared.payload.encoding
    advance, time = _time("--advance", options.advance, shape), _time("--time", options.time, shape)
    key = None if options.key is None else os.fsencode(options.key)  # also bytes that are not UTF-8
    if key is not None and len(key) > MAX_KEY:
        raise UsageError(f"--key has {len(key):,} bytes; a key has at most {MAX_KEY:,}")
    topic = os.fsencode(options.topic)
    if len(topic) > MAX_TOPIC:
        raise UsageError(f"--topic has {len(topic):,} bytes; a topic has at most {MAX_TOPIC:,}")
    checks = record_checks(declared.payload.fields, encoding)
    placement = RecordPlacement(
        shape, time, options.time_field, key, options.key_field, options.in_order, checks, encoding,
        declared.payload.fields,
    )  # fmt: skip
    parse = line_parser(encoding, as_text=options.text)
    sources = open_sources(inputs.records, inputs.files, parse, encoding) if inputs.any else []
    total = await _check(sources, placement, lambda append: encode(append, encoding, declared.payload.fields))
    if any(source.name == STDIN for source in sources) and sys.stdin.isatty() and not options.quiet:
        note("reading records from the terminal, one a line; Ctrl-D ends, Ctrl-C gives up")
    sender = RecordSender(
        placement, encoding, declared.payload.fields, topic, options.headers,
        SendSpans("/".join(name)), options.wait, options.quiet,
    )  # fmt: skip
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(url, timeout))
            writer = client.writer(
                "/".join(name), writer_id=writer_id, linger=options.linger, clock=options.clock, validate=False
            )
            await stack.enter_async_context(answers_awaited(writer, "/".join(name), url, timeout))
            await stack.enter_async_context(writer)
            with Counter(total, options.quiet) as counter:
                ended = await sender.run(writer, sources, counter)
            after = "nothing was advanced or finished"
            if ended is None and (ended := await sender.promise(writer, advance, options.finish)) is not None:
                after = "of what was to be advanced or finished it is not known"
            leaving()
    except EpochalError:
        if sender.sent:
            note(f"{sender.known()}; of {sender.sent - sender.acknowledged:,} more it is not known")
        raise
    if ended is not None:
        note(f"{sender.known()}; {after}")
        if isinstance(ended, Interrupted):
            return ExitStatus.INTERRUPTED
        raise ended
    if not options.quiet:
        _summarise(sender, options, "/".join(name), counter.seconds, advance)
        if advance is not None and not options.finish:
            await _say_who_holds(name, sender.times, advance, writer_id, url, timeout)
    return ExitStatus.OK


def _headers(texts: Sequence[str] | None) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header takes NAME=VALUE, not {text!r}")
        if os.fsencode(name) in headers:
            raise typer.BadParameter(f"--header {name} is given twice")
        headers[os.fsencode(name)] = os.fsencode(value)
    return headers


def _time(option: str, text: str | None, shape: TimeShape) -> Time | None:
    try:
        return None if text is None else parse_time(text, shape)
    except TimeShapeError as error:
        raise TimeShapeError(f"{option}: {error}") from None


def _summarise(sender: RecordSender, options: _Options, stream: str, seconds: float, advanced: Time | None) -> None:
    """Print the summary, and what surprises a newcomer: that nothing is complete yet."""
    number, times = sender.acknowledged, len(sender.times)
    parts = [f"published {number:,} record{'' if number == 1 else 's'} at {times:,} time{'' if times == 1 else 's'}"]
    if not number:
        parts = ["published nothing"]
    if options.advance is not None:
        parts.append(f"advanced to {options.advance}")
    if options.finish:
        parts.append("finished")
    note(f"{', '.join(parts)}: {stream}, {seconds:.1f} s")
    if advanced is not None and not options.finish:
        still = [str(time) for time in sorted(sender.times) if less_equal(advanced, time)]
        if still:
            which = f"time {still[0]} stays" if len(still) == 1 else f"times {', '.join(still[:5])} stay"
            note(f"{which} open: --advance {options.advance} promises no more before {options.advance}, not at it")
    if number and options.advance is None and not options.finish:
        which = "its epoch is" if times == 1 else "its latest epoch is" if options.in_order else "its epochs are"
        note(f"{which} not complete yet: `epochal pub {stream} --advance T` or --finish promises that no more comes")


async def _say_who_holds(
    name: tuple[str, str], times: Iterable[Time], advanced: Time, writer: str, url: str | None, timeout: float
) -> None:
    """Say who keeps a time open that this command has left: its epoch is not delivered before that changes."""
    past = sorted(time for time in times if not less_equal(advanced, time))

    def is_open(held: Time) -> bool:
        return any(less_equal(held, time) for time in past) if past else not less_equal(advanced, held)

    with contextlib.suppress(EpochalError):  # everything is published; this would only add information
        async with open_catalog(url, min(timeout, REPORTED_WITHIN)) as catalog:
            held = await who_holds(catalog, name, is_open, writer)
        if not held:
            return
        lowest = [each.time for each in held if each.time is not None]
        still = [show_time(time) for time in past if any(less_equal(low, time) for low in lowest)]
        which = f"what is before {show_time(advanced)} is"
        if still:
            which = f"time {still[0]} is" if len(still) == 1 else f"times {', '.join(still[:5])} are"
        note(f"{which} not complete yet: {in_words(held)}")


async def _check(
    sources: Sequence[Source], placement: RecordPlacement, encode: Callable[[RecordGroup], object]
) -> int | None:
    """Check the inputs that can be read twice. Returns the number of all records, None if it cannot be known."""
    total = 0
    repeatable = [source for source in sources if source.again]
    placement.start()
    for source in repeatable:
        async for items in source.chunks():
            for append in placement.appends(items):
                encode(append)
                total += len(append.items)
    placement.start()
    return total if len(repeatable) == len(sources) else None
