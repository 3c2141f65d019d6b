"""`epochal top`: streams by trouble, on a screen that is drawn again and again, or once as a table.

`epochal.cli.top` decides what is shown and what keys do. This module has the terminal, the signals and the clock.
"""

import asyncio
import contextlib
import io
import signal
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.connections import open_catalog
from epochal.cli.io.keys import reported_keys, single_keys
from epochal.cli.io.output import print_document, print_table
from epochal.cli.io.signals import reported_signals
from epochal.cli.io.terminal import console, is_live, note
from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    AllNamespaces,
    CatalogOption,
    NamespaceOption,
    StreamsArgument,
    Timeout,
    chosen_namespace,
)
from epochal.cli.target import name_of, run
from epochal.cli.top.drawing import Status, draw, last_scroll, page, plain
from epochal.cli.top.looks import Looks, Wanted
from epochal.cli.top.rows import Order, Snapshot, document, rows
from epochal.cli.top.screen import Mode, Screen
from epochal.client.catalog.catalog import CatalogClient
from epochal.errors import EpochalError
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name

if TYPE_CHECKING:
    from rich.live import Live

EPILOG = """\b
Examples:
  epochal top                            # a screen, until q
  epochal top -n demo --sort lag
  epochal top --once                     # one table
  epochal top demo/flights -o json | jq -r '.streams[].trouble'

\b
TROUBLE, the worst first:
  down     a segment has no publisher
  full     a segment's log cannot be written, its disk is full
  lost     the stream waits for a lost writer (progress.whenLost: hold)
  held     a writer holds the frontier for long, or is silent
  waiting  appends wait until the catalog has recorded their times
  slow     32 MiB or more wait in a reader's program

\b
Keys:
  t n r l       sort by trouble, name, rate (of records) or lag
  /             filter by a text in names of streams and holders
  up, down      select a stream; Enter opens it, Esc goes back
  q             quit

HELD BY and FOR say who has kept the times at FRONTIER from completing for longest, and for how long. LAG is that of
the slowest reader: 0 at the stream's frontier, else the frontier that it has received, and how much its program has
not taken yet. A reader reports every ten seconds, so one that keeps up may show an older frontier. APP/S and REC/S are
appends and records per second, from the metrics of all of the stream's publishers; - if one cannot be read.

Without a terminal, or with --once, one table or JSON object is printed. That takes a second, between two reads of the
counters."""

GAP = 1.0
"""Seconds between the two reads of a snapshot, at most."""
LOOK_TIMEOUT = 5.0
"""Seconds without an answer after which the screen says that the catalog does not answer."""
NOTES = 20
"""Lines for standard error that are kept while a screen is shown."""


class TopFormat(StrEnum):
    """How a snapshot is printed."""

    TABLE = "table"
    JSON = "json"


def top(
    names: StreamsArgument = None,
    order: Annotated[
        Order, typer.Option("--sort", metavar="trouble|name|rate|lag", help="How to sort.")
    ] = Order.TROUBLE,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=3600, help="Time between polls.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, also on a terminal.")] = False,
    output: Annotated[
        TopFormat | None,
        typer.Option("--output", "-o", metavar="table|json", help="Print once, in this format.", show_default=False),
    ] = None,
    namespace: NamespaceOption = None,
    everywhere: AllNamespaces = False,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show streams live, those in trouble first."""
    streams = [parse_stream_name(name, namespace or DEFAULT_NAMESPACE) for name in names or ()]
    wanted = Wanted(streams, None if streams else chosen_namespace(namespace, everywhere))
    if once or output is not None or not (sys.stdin.isatty() and is_live(sys.stdout)):
        run(_once(wanted, order, min(interval, GAP), output is TopFormat.JSON, catalog, timeout))
    else:
        run(_live(wanted, order, interval, catalog, timeout))


async def _once(wanted: Wanted, order: Order, gap: float, as_json: bool, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog, Looks(wanted) as looks:
        await looks.look(catalog)
        await asyncio.sleep(gap)
        snapshot = await looks.look(catalog)
    found = rows(snapshot, order)
    if as_json:
        print_document(document(snapshot, found), in_yaml=False)
    elif found:
        print_table(*plain(found))
    elif wanted.namespace is not None:
        note(f"no streams in namespace {wanted.namespace}; -A shows those of all namespaces")
    else:
        note("no streams; declare one with: epochal apply -f FILE")


# ---- on a terminal ----


async def _live(wanted: Wanted, order: Order, interval: float, url: str | None, timeout: float) -> None:
    """Show a screen until q."""
    async with open_catalog(url, timeout) as patient, Looks(wanted) as looks:
        first = await looks.look(patient)  # errors of usage are reported before there is a screen
        async with CatalogClient(patient.url, patience=0.0, timeout=LOOK_TIMEOUT) as catalog:
            terminal = _Terminal(Screen(order), first, Status(name_of(patient.url)))
            looking = asyncio.create_task(_look(terminal, looks, catalog, interval), name="look at the catalog")
            try:
                await terminal.show(looking)
            finally:
                looking.cancel()
                await asyncio.wait([looking])


async def _look(terminal: "_Terminal", looks: Looks, catalog: CatalogClient, interval: float) -> None:
    """Poll the catalog for ever; the last snapshot stays on the screen while it does not answer."""
    while True:
        await asyncio.sleep(interval)
        try:
            terminal.bring(await looks.look(catalog))
        except EpochalError as error:
            terminal.complain(str(error))


class _Terminal:
    """The screen, and the events that change it."""

    def __init__(self, screen: Screen, snapshot: Snapshot, status: Status) -> None:
        self._screen = screen
        self._snapshot = snapshot
        self._status = status
        self._changed = asyncio.Event()
        self._console = console()

    async def show(self, looking: "asyncio.Task[None]") -> None:
        """Draw until the user quits or `looking` fails; then restore the terminal."""
        from rich.live import Live  # here: `epochal top --help` needs none

        looking.add_done_callback(lambda _: self._changed.set())
        file = sys.stdin.fileno()
        live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
                    redirect_stderr=False)  # fmt: skip
        with (
            _kept_notes(),
            reported_signals(lambda _: self._changed.set(), [signal.SIGWINCH]),
            single_keys(file),
            live,
            reported_keys(file, self._press, self._close),
        ):
            while self._screen.mode is not Mode.OVER:
                if looking.done():
                    looking.result()  # it ends only by a bug, which is raised here
                self._draw(live)
                await self._changed.wait()
                self._changed.clear()

    def bring(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        self._snapshot, self._status = snapshot, replace(self._status, problem="")
        self._changed.set()

    def complain(self, problem: str) -> None:
        """Show why there is no new snapshot."""
        self._status = replace(self._status, problem=f"as of {self._snapshot.at:%H:%M:%S}: {problem}")
        self._changed.set()

    def _draw(self, live: "Live") -> None:
        from rich.console import Group

        width, height = self._console.size
        lines = draw(self._screen, self._snapshot, self._status, width, height)
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        live.update(Group(*lines), refresh=True)

    def _press(self, key: str) -> None:
        names = [row.name for row in rows(self._snapshot, self._screen.order, self._screen.filter)]
        width, height = self._console.size
        self._screen = self._screen.press(key, names, page(height))
        if self._screen.scroll:
            most = last_scroll(self._screen, self._snapshot, width, height)
            self._screen = replace(self._screen, scroll=min(self._screen.scroll, most))
        self._changed.set()

    def _close(self) -> None:
        self._screen = replace(self._screen, mode=Mode.OVER)
        self._changed.set()


class _Notes(io.TextIOBase):
    """Keeps the last lines that are written."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=NOTES)

    def write(self, text: str) -> int:
        self.lines.extend(text.splitlines())
        return len(text)


@contextlib.contextmanager
def _kept_notes() -> Iterator[None]:
    """Keep what is written to standard error off the screen, and write it afterwards."""
    notes = _Notes()
    try:
        with contextlib.redirect_stderr(notes):
            yield
    finally:
        for line in notes.lines:
            note(line)
