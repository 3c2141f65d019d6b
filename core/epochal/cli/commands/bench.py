"""`epochal bench`: measure a stream against the services that are running.

`epochal.cli.bench` measures and computes. This module reads the options, refuses streams that a benchmark cannot
publish to, and prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from epochal.cli.bench.measures import LAST_WORDS, Appends, LatencyMeasure, PubMeasure, Reads, SubMeasure
from epochal.cli.bench.records import STAMP
from epochal.cli.bench.schedule import next_time
from epochal.cli.connections import connected, open_catalog
from epochal.cli.cursor_files import read_since_option
from epochal.cli.failures import ExitStatus
from epochal.cli.io.output import print_document, print_table
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, NamespaceOption, StreamArgument, Timeout
from epochal.cli.target import run
from epochal.cli.waits import answers_awaited
from epochal.errors import UsageError
from epochal.resources.manifest import StreamManifest
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.transport.sockets import check_libzmq

EPILOG = """\b
Measures:
  pub      append as fast as publishers take it: records a second, and the
           time from an append to its acknowledgement
  sub      read: records a second, epochs a second
  latency  append at a steady rate and read in the same process: the time
           from when a record was due to when it was delivered

\b
Examples:
  epochal bench pub demo/bench
  epochal bench pub demo/bench --batch 1 --seconds 5
  epochal bench sub demo/bench --seconds 30       # while others publish
  epochal bench sub demo/bench --since start --count 1000000
  epochal bench latency demo/bench --rate 5000 -o json

bench pub and bench latency append real records, which stay in the stream and reach its readers. Use a stream of its
own, without payload.schema. The first time is the one after the frontier; a new epoch begins every --epoch seconds, or
after 32 MiB. At the end, also after Ctrl-C, all these epochs are complete, and so are those at the frontier before,
unless another writer holds them.

\b
A stream for benchmarks, for `epochal apply -f -`:
  apiVersion: epochal.dev/v1alpha1
  kind: Stream
  metadata: {name: bench, namespace: demo}
  spec: {time: {shape: int}, payload: {encoding: bytes}}

Latency counts from the moment in which a record was to be sent, so a wait of the writer is part of it. Ctrl-C prints
what was measured so far, and ends with status 130."""

SECONDS = 10.0
"""Seconds that a measurement takes, unless it ends by --count."""
SIZE = 128
"""Bytes of a record, as in docs/performance.md."""
BATCH = 256
"""Records in an append."""
RATE = 1000
"""Records that `latency` sends per second: few enough for a laptop that does other work."""
EPOCH = 1.0
"""Seconds until the next epoch begins."""


class Measure(StrEnum):
    """What is measured."""

    PUB = "pub"
    SUB = "sub"
    LATENCY = "latency"


class BenchFormat(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


_ONLY = {
    "--size": (Measure.PUB, Measure.LATENCY),
    "--batch": (Measure.PUB,),
    "--clock": (Measure.PUB,),
    "--epoch": (Measure.PUB, Measure.LATENCY),
    "--rate": (Measure.LATENCY,),
    "--since": (Measure.SUB,),
}
"""The options that only some measures have."""


@dataclass(frozen=True, slots=True)
class _Options:
    """The options as the user gave them."""

    seconds: float | None
    count: int | None
    size: int | None
    batch: int | None
    clock: bool
    epoch: float | None
    rate: int | None
    since: str | None

    @property
    def limit(self) -> float | None:
        """Seconds after which it ends; None if --count alone ends it."""
        return SECONDS if self.seconds is None and self.count is None else self.seconds


def bench(
    measure: Annotated[
        Measure, typer.Argument(metavar="pub|sub|latency", help="What to measure.", show_default=False)
    ],
    stream: StreamArgument,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="SECONDS", min=0.1, max=86400, help="How long to measure; 10 unless this or "
                     "--count is given."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N records.")
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", metavar="BYTES", min=1, help=f"Size of a record; {SIZE} unless given.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", min=1, max=1_000_000, help=f"For pub: records in an append; {BATCH} "
                     f"unless given."),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", metavar="N", min=1, max=1_000_000, help="For latency: records per second, each an "
                     f"append; {RATE} unless given."),
    ] = None,
    epoch: Annotated[
        float | None,
        typer.Option("--epoch", metavar="SECONDS", min=0.001, max=3600, help="For pub and latency: length of an epoch; "
                     f"{EPOCH:g} unless given."),
    ] = None,
    clock: Annotated[
        bool, typer.Option("--clock", help="For pub: send this machine's wall clock, from which bench sub shows LAG.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHERE", help="For sub: where to begin, as for epochal sub; live unless "
                     "given."),
    ] = None,
    output: Annotated[
        BenchFormat, typer.Option("--output", "-o", metavar="table|json", help="The output format.")
    ] = BenchFormat.TABLE,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> int:  # fmt: skip
    """Measure appends, reads or latency against the running services."""
    options = _Options(seconds, count, size, batch, clock, epoch, rate, since)
    _check(measure, options)
    name = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    work = {Measure.PUB: _pub, Measure.SUB: _sub, Measure.LATENCY: _latency}[measure]
    return run(work(name, options, output, catalog, timeout))


def _check(measure: Measure, options: _Options) -> None:
    """Refuse an option that has no effect on this measure."""
    for option, measures in _ONLY.items():
        if measure not in measures and getattr(options, option.removeprefix("--")) not in (None, False):
            raise typer.BadParameter(f"{option} is of `bench {'` and `bench '.join(measures)}`, not of {measure}")
    if measure is Measure.LATENCY and (options.size or SIZE) < STAMP:
        raise typer.BadParameter(f"--size: a record of latency carries its time, and has at least {STAMP} bytes")


async def _pub(name: tuple[str, str], options: _Options, output: BenchFormat, url: str | None, timeout: float) -> int:
    check_libzmq()
    declared = await _declared(name, url, timeout)
    measure = PubMeasure(_appends(declared, options, batch=options.batch or BATCH))
    _warn(declared)
    async with connected(url, timeout) as client:
        await measure.run(client, lambda writer: answers_awaited(writer, declared.qualified, url, timeout))
    asked = {"record_bytes": measure.appends.size, "batch_records": measure.appends.batch}
    _print(declared, "pub", {**asked, "way": measure.way}, measure, output)
    return ExitStatus.INTERRUPTED if measure.interrupted else ExitStatus.OK


async def _sub(name: tuple[str, str], options: _Options, output: BenchFormat, url: str | None, timeout: float) -> int:
    check_libzmq()
    since = read_since_option(options.since)
    declared = await _declared(name, url, timeout)
    encoding = declared.spec.payload.encoding
    measure = SubMeasure(Reads(declared.qualified, encoding, since, options.limit, options.count))
    async with connected(url, timeout) as client:
        await measure.run(client)
    _print(declared, "sub", {"since": options.since}, measure, output)
    if measure.result.gaps:
        note(f"gaps: {measure.result.gaps:,}; the events in them are lost for good")
    if measure.interrupted:
        return ExitStatus.INTERRUPTED
    if not measure.result.traffic.records:
        note(f"nothing came; publish meanwhile, or read what {declared.qualified} retains with --since start")
        return ExitStatus.UNAVAILABLE
    return ExitStatus.OK


async def _latency(
    name: tuple[str, str], options: _Options, output: BenchFormat, url: str | None, timeout: float
) -> int:
    check_libzmq()
    declared = await _declared(name, url, timeout)
    measure = LatencyMeasure(_appends(declared, options, rate=options.rate or RATE))
    _warn(declared)
    async with connected(url, timeout) as client:
        await measure.run(client, lambda writer: answers_awaited(writer, declared.qualified, url, timeout))
    _print(declared, "latency", {"record_bytes": options.size or SIZE, "way": measure.way}, measure, output)
    result = measure.result
    unsent, missing = result.expected - result.sent, result.sent - result.latency.count
    if unsent and not measure.interrupted:
        note(f"{_records(unsent)} could not be sent in time; try a lower --rate")
    if missing:
        note(f"{_records(missing)} had not come back {LAST_WORDS:g} s after the last was acknowledged")
    if measure.interrupted:
        return ExitStatus.INTERRUPTED
    return ExitStatus.UNAVAILABLE if missing else ExitStatus.OK


def _records(number: int) -> str:
    return f"{number:,} record{'' if number == 1 else 's'}"


async def _declared(name: tuple[str, str], url: str | None, timeout: float) -> StreamManifest:
    """The stream's manifest. Waits for a catalog that does not answer, and says so."""
    async with open_catalog(url, timeout) as catalog:
        return (await catalog.get(*name)).declared()


def _appends(declared: StreamManifest, options: _Options, *, batch: int = 1, rate: int = RATE) -> Appends:
    """What to append to this stream. Raises `UsageError` where a benchmark cannot publish."""
    spec, name = declared.spec, declared.qualified
    instead = "declare a stream for benchmarks, as `epochal bench --help` shows"
    if spec.payload.fields is not None:
        raise UsageError(
            f"{name} declares payload.schema, and the records of a benchmark have no such fields\nwhat to do: {instead}"
        )
    if next_time(spec.time.shape.bottom) is None:
        raise UsageError(
            f"{name} knows one time only, {spec.time.shape}: its epoch could not end without the stream\n"
            f"what to do: {instead}"
        )
    return Appends(
        name,
        spec.payload.encoding,
        options.size or SIZE,
        options.epoch or EPOCH,
        options.limit,
        options.count,
        batch,
        rate,
        options.clock,
    )


def _warn(declared: StreamManifest) -> None:
    note(f"appends real records to {declared.qualified}, at times after its frontier")


def _print(
    declared: StreamManifest, name: str, asked: Mapping[str, Any], measure: PubMeasure | SubMeasure | LatencyMeasure,
    output: BenchFormat,
) -> None:  # fmt: skip
    if output is BenchFormat.JSON:
        head = {"measure": name, "stream": declared.qualified, "encoding": declared.spec.payload.encoding, **asked}
        print_document({**head, "interrupted": measure.interrupted, **measure.result.to_json()}, in_yaml=False)
        return
    for number, (columns, rows) in enumerate(measure.result.tables()):
        print("\n" if number else "", end="")
        print_table(columns, rows)
