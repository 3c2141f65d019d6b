"""`epochal trace`: which traces the batches of a time were made in.

Unlike `sub`, which prints records, this command reads a stream up to where it ended when the command started, and no
further, so that it can answer for a time that is not complete too.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

import epochal
from epochal.catalog_api.texts import show_time
from epochal.cli.connections import connected, open_catalog
from epochal.cli.io.output import parse_time, print_document, print_table
from epochal.cli.io.terminal import note
from epochal.cli.options import DEFAULT_TIMEOUT, CatalogOption, NamespaceOption, StreamArgument, Timeout
from epochal.cli.target import run
from epochal.errors import ConfigError, Problem, TimedOut, TimeShapeError
from epochal.protocol.messages import Position
from epochal.protocol.times import Time, less_equal, to_json
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.transport.sockets import check_libzmq

EPILOG = """\b
Examples:
  epochal trace demo/flights --time 2013010107
  epochal trace demo/flights --time '(5, 1)' -o json | jq -r '.traces[].trace'

Reads the batches of the time from what publishers retain, and prints each trace that they were made in, those with the
most records first. SAMPLED says what the writer's tracing decided: what is not sampled reaches no collector. Standard
error says what else the time has: batches without a trace, that it is not complete yet, that it was aborted.

\b
With -o json one object:
  {"stream", "time", "state": "complete" | "open" | "aborted",
   "traces": [{"trace", "batches", "records", "segments", "sampled", "link"}],
   "without_trace": {"batches", "records"}}

EPOCHAL_TRACE_URL gives each trace a link: the address of a trace's page, with {trace} where its id goes, as
http://127.0.0.1:9411/zipkin/traces/{trace}; without it there is none."""

VARIABLE = "EPOCHAL_TRACE_URL"
QUIET = 0.1
"""Seconds without an event after which reading ends, once every segment was read to its end."""


class TraceFormat(StrEnum):
    """How traces are printed."""

    TABLE = "table"
    JSON = "json"


class TimeState(StrEnum):
    """The state of a time."""

    COMPLETE = "complete"
    OPEN = "open"
    ABORTED = "aborted"


@dataclass(slots=True)
class TraceBatches:
    """The batches of one trace, or those without a trace."""

    batches: int = 0
    records: int = 0
    segments: set[str] = field(default_factory=set)
    sampled: bool = False

    def add(self, data: epochal.Data) -> None:
        """Count one more batch."""
        self.batches += 1
        self.records += data.count
        self.segments.add(data.segment)
        self.sampled |= data.trace is not None and bool(data.trace[24] & 1)


@dataclass(slots=True)
class TracesOfTime:
    """The batches of a time, grouped by trace id in hex."""

    traces: dict[str, TraceBatches] = field(default_factory=dict)
    without: TraceBatches = field(default_factory=TraceBatches)
    state: TimeState = TimeState.OPEN

    def add(self, data: epochal.Data) -> None:
        """Count one more batch."""
        group = self.without
        if data.trace is not None:
            group = self.traces.setdefault(data.trace[:16].hex(), TraceBatches())
        group.add(data)

    @property
    def ordered(self) -> list[tuple[str, TraceBatches]]:
        """The groups, those with the most records first."""
        return sorted(self.traces.items(), key=lambda item: (-item[1].records, item[0]))


def trace(
    stream: StreamArgument,
    time: Annotated[str, typer.Option("--time", "-t", metavar="T", help="The time of the batches: 5 or '(5, 1)'.")],
    output: Annotated[
        TraceFormat, typer.Option("--output", "-o", metavar="table|json", help="The output format.")
    ] = TraceFormat.TABLE,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Print the traces that the batches of a time were made in."""
    template = link_template(os.environ)
    name = parse_stream_name(stream, namespace or DEFAULT_NAMESPACE)
    run(_trace(name, time, output, template, catalog, timeout))


def link_template(environ: Mapping[str, str]) -> str | None:
    """The address of a trace's page, with `{trace}` in it; None for none. Raises `ConfigError` for any other text."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        parts = urlsplit(text)
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    rest = text.replace("{trace}", "")
    if not well or rest == text or "{" in rest or "}" in rest:
        problem = Problem(
            VARIABLE,
            f"{text!r} is no address with {{trace}} in it",
            "write it as http://HOST:9411/zipkin/traces/{trace}",
        )
        raise ConfigError("traces cannot be linked as the environment asks", [problem])
    return text


async def _trace(
    name: tuple[str, str], text: str, output: TraceFormat, template: str | None, url: str | None, timeout: float
) -> None:
    check_libzmq()
    async with open_catalog(url, timeout) as catalog:  # also waits for a catalog that does not answer, and says so
        shape = (await catalog.get(*name)).declared().spec.time.shape
    try:
        time = parse_time(text, shape)
    except TimeShapeError as error:
        raise TimeShapeError(f"--time: {error}") from None
    qualified = "/".join(name)
    async with connected(url, timeout) as client:
        try:
            async with asyncio.timeout(max(timeout, 1.0)):
                found = await _read(client, qualified, time)
        except TimeoutError:
            raise TimedOut(f"{qualified}: not every segment sent its history within {timeout:g} s") from None
    _show(qualified, time, found, output, template)


async def _read(client: epochal.Client, stream: str, time: Time) -> TracesOfTime:
    """The batches of `time` up to the present end of the stream."""
    async with client.subscribe(stream, partial=True) as now:
        await now.ready.wait()
        now.frontier()  # raises the error if it failed
        ends = {segment: now.position(segment) for segment in now.directory.segments}
    found, aborted = TracesOfTime(), False
    async with client.subscribe(stream, since=f"frontier:{json.dumps([to_json(time)])}") as past:
        events = past.events()
        while True:
            there = past.ready.is_set() and _reached(past, ends)
            try:
                async with asyncio.timeout(QUIET):
                    event = await anext(events)
            except TimeoutError:
                if there:
                    break
                continue
            except StopAsyncIteration:
                found.state = TimeState.COMPLETE
                break
            match event:
                case epochal.Data(time=at) if at == time:
                    found.add(event)
                case epochal.EpochAborted(time=at) if at == time:
                    aborted = True
                case epochal.FrontierChanged(frontier=frontier) if not _can_grow(time, frontier):
                    found.state = TimeState.COMPLETE
                    break
        if found.state is TimeState.OPEN and not _can_grow(time, past.frontier()):
            found.state = TimeState.COMPLETE
    if aborted:
        found.state = TimeState.ABORTED
    return found


def _reached(subscription: epochal.Subscription, ends: Mapping[str, Position]) -> bool:
    return all(subscription.position(segment) >= end for segment, end in ends.items())


def _can_grow(time: Time, frontier: Iterable[Time]) -> bool:
    return any(less_equal(low, time) for low in frontier)


def _show(stream: str, time: Time, found: TracesOfTime, output: TraceFormat, template: str | None) -> None:
    if output is TraceFormat.JSON:
        print_document(_document(stream, time, found, template), in_yaml=False)
    elif found.traces:
        columns = ["TRACE", "BATCHES", "RECORDS", "SEGMENTS", "SAMPLED", *(["LINK"] if template else [])]
        print_table(columns, [_row(trace, group, template) for trace, group in found.ordered])
    at = f"time {show_time(time)} of {stream}"
    batches = sum(group.batches for group in found.traces.values()) + found.without.batches
    match found.state:
        case TimeState.OPEN:
            note(
                f"{at} is not complete yet: more may come; `epochal describe stream {stream}` shows what holds it back"
            )
        case TimeState.ABORTED:
            note(f"{at} was aborted: it will never be complete, and no one gets it as an epoch")
    if not batches and found.state is not TimeState.ABORTED:
        note(f"{at} has no batch")
    elif found.without.batches:
        few = f"{found.without.batches:,} of its {batches:,} batches, with {found.without.records:,} records,"
        note(f"{at}: {few} have no trace: they were published outside of any span")


def _row(trace: str, group: TraceBatches, template: str | None) -> list[str]:
    sampled = "yes" if group.sampled else "no"
    cells = [trace, f"{group.batches:,}", f"{group.records:,}", ",".join(sorted(group.segments)), sampled]
    return [*cells, template.replace("{trace}", trace)] if template else cells


def _document(stream: str, time: Time, found: TracesOfTime, template: str | None) -> dict[str, Any]:
    traces = [
        {
            "trace": trace,
            "batches": group.batches,
            "records": group.records,
            "segments": sorted(group.segments),
            "sampled": group.sampled,
            "link": template.replace("{trace}", trace) if template else None,
        }
        for trace, group in found.ordered
    ]
    without = {"batches": found.without.batches, "records": found.without.records}
    return {
        "stream": stream, "time": to_json(time), "state": found.state, "traces": traces, "without_trace": without,
    }  # fmt: skip
