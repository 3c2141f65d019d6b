"""What the demo shows while it runs: a live table on a terminal, a plain line a day elsewhere."""

import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from examples.demo.tally import Join, Kill, Sums, Tally, only, show_hour, show_hours
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

ORIGINS = ("EWR", "JFK", "LGA")
ROWS = 10
"""Hours in the live table."""


class View(Protocol):
    """What a run tells its view."""

    def step(self, text: str) -> None:
        """The run goes on to something else."""

    def prepared(self, days: int, hours: int, flights: int) -> None:
        """How much there is to publish."""

    def under_way(self, hours: set[int]) -> None:
        """Hours of which a part has been published."""

    def complete(self, hour: int, tally: Tally, *, late: bool) -> None:
        """A subscriber was given a complete hour, which is in its tally."""

    def joined(self, join: Join) -> None:
        """The late subscriber has joined."""

    def killed(self, kill: Kill) -> None:
        """A publisher was killed."""

    def back(self, seconds: float) -> None:
        """Its next process serves what it served, so many seconds later."""


class PlainView:
    """Lines of text: one for each step and for each complete day."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._day: list[int] = []
        self._tally = Tally()

    def step(self, text: str) -> None:
        """A line."""
        self._end_day()
        print(text, flush=True)

    def prepared(self, days: int, hours: int, flights: int) -> None:
        """A line."""
        self._total = hours
        print(f"{days} days: {hours} hours, {flights:,} flights; one epoch an hour, one micro-batch a day", flush=True)

    def under_way(self, hours: set[int]) -> None:
        """Too much for lines."""

    def complete(self, hour: int, tally: Tally, *, late: bool) -> None:
        """A line when a day is over."""
        if late:
            return
        if self._day and self._day[-1] // 100 != hour // 100:
            self._end_day()
        self._day.append(hour)
        self._tally, self._done = tally, len(tally.hours)

    def joined(self, join: Join) -> None:
        """A line."""
        self._end_day()
        print(_joined(join), flush=True)

    def killed(self, kill: Kill) -> None:
        """A line."""
        self._end_day()
        done = f"{kill.complete} of {kill.total} hours are complete ({_share(kill.complete, kill.total)})"
        print(f"a publisher is {kill.how}: {done}, under way {show_hours(kill.active)}", flush=True)

    def back(self, seconds: float) -> None:
        """A line."""
        self._end_day()
        print(f"it is back after {seconds:.1f} s, with all that was acknowledged", flush=True)

    def _end_day(self) -> None:
        if not self._day:
            return
        sums = [entry for hour in self._day for entry in self._tally.hours[hour].values()]
        day, where = (
            show_hour(self._day[0])[:10],
            f"{self._done} of {self._total} hours, {_share(self._done, self._total)}",
        )
        print(f"{day}  {len(self._day):2} hours complete, {_all(sums)}  ({where})", flush=True)
        self._day = []


class LiveView:
    """A table of the last hours, a bar, and a line for each subscriber; redrawn while entered."""

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("dots")
        self._step = ""
        self._days = self._total = self._flights = 0
        self._recent: deque[int] = deque(maxlen=ROWS)
        self._active: list[int] = []
        self._early = Tally()
        self._late = Tally()
        self._join: Join | None = None
        self._kill: Kill | None = None
        self._back: float | None = None
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step = ""
        self._live.__exit__(kind, error, trace)

    def step(self, text: str) -> None:
        """Shown beside the spinner."""
        self._step = text

    def prepared(self, days: int, hours: int, flights: int) -> None:
        """Shown at the top."""
        self._days = days
        self._total = hours
        self._flights = flights

    def under_way(self, hours: set[int]) -> None:
        """Shown as the last row."""
        self._active = sorted(hours)

    def complete(self, hour: int, tally: Tally, *, late: bool) -> None:
        """Shown as a row."""
        if late:
            self._late = tally
        else:
            self._early = tally
            self._recent.append(hour)

    def joined(self, join: Join) -> None:
        """Shown at the bottom."""
        self._join = join

    def killed(self, kill: Kill) -> None:
        """Shown below that."""
        self._kill = kill

    def back(self, seconds: float) -> None:
        """Shown beside it."""
        self._back = seconds

    # ---- drawing ----

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._head()]
        if self._total:
            parts += [Text(), self._bar(), Text(), self._table(), Text(), self._subscribers()]
        if self._step:
            self._spinner.update(text=Text(f" {self._step}", style="dim"))
            parts += [Text(), self._spinner]
        return Padding(Group(*parts), (1, 1, 0, 1))

    def _head(self) -> Text:
        head = Text("Departures from New York, 2013", style="bold")
        if self._total:
            head.append(f"   {self._days} days, {self._total:,} hours, {self._flights:,} flights", style="not bold")
        return head

    def _bar(self) -> Table:
        done = len(self._early.hours)
        row = Table.grid(padding=(0, 2))
        seconds = int(time.monotonic() - self._began)
        row.add_row(
            ProgressBar(total=self._total, completed=done, width=30, complete_style="green", finished_style="green"),
            Text(f"{done:,} of {self._total:,} hours complete"),
            Text(_share(done, self._total), style="bold green"),
            Text(f"{seconds // 60}:{seconds % 60:02}", style="dim"),
        )
        return row

    def _table(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold cyan", show_edge=False, collapse_padding=True
        )
        table.add_column("hour", no_wrap=True, min_width=16)
        for origin in ORIGINS:
            table.add_column(f"{origin}\nflights", justify="right", min_width=7)
            table.add_column("delay\nmin", justify="right", min_width=5)
        table.add_column("from\nstart", justify="center", min_width=5)
        airport = self._join.airport if self._join else None
        table.add_column(f"late\n{airport}" if airport else "\nlate", justify="center", min_width=5)
        for hour in self._recent:
            table.add_row(*self._hour(hour))
        for _ in range(ROWS - len(self._recent)):
            table.add_row()
        table.add_row(*self._under_way())
        return table

    def _hour(self, hour: int) -> list[RenderableType]:
        sums = self._early.hours[hour]
        cells: list[RenderableType] = [show_hour(hour)]
        for origin in ORIGINS:
            entry = sums.get(origin)
            cells += [Text("-", style="dim"), ""] if entry is None else [str(entry.flights), _mean([entry])]
        late, wanted = self._late.hours.get(hour), only({hour: sums}, self._join.airport if self._join else None)
        seen = Text("-" if self._join else "", style="dim") if late is None else _mark(late == wanted.get(hour))
        return [*cells, Text("✓", style="green"), seen]

    def _under_way(self) -> list[RenderableType]:
        if not self._active:
            done = len(self._early.hours) == self._total
            return [Text("all complete" if done else "none under way", style="dim")]
        count = len(self._active)
        what = Text(f"{count} under way", style="yellow")
        dots = Text("…", style="yellow")
        return [what, *([Text("")] * (2 * len(ORIGINS))), dots, dots if self._join else Text("")]

    def _subscribers(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("from the start", style="bold"), _seen(self._early))
        if self._join is None:
            grid.add_row(Text("late", style="bold"), Text("has not joined yet", style="dim"))
            return grid
        grid.add_row(Text("late", style="bold"), _seen(self._late))
        share = _share(self._join.complete, self._join.total)
        grid.add_row("", Text(f"joined at {share}, in the middle of {show_hours(self._join.active)}", style="yellow"))
        if self._join.airport is not None:
            grid.add_row("", Text(f"{_asked(self._join)}", style="yellow"))
        if self._kill is not None:
            share = _share(self._kill.complete, self._kill.total)
            back = "away" if self._back is None else f"back after {self._back:.1f} s with all that was acknowledged"
            grid.add_row(Text("a publisher", style="bold"), Text(f"{self._kill.how} at {share}, {back}", style="red"))
        return grid


def _seen(tally: Tally) -> Text:
    sums = [entry for hour in list(tally.hours.values()) for entry in hour.values()]
    return Text(f"{len(tally.hours):,} hours, {_all(sums)}")


def _joined(join: Join) -> str:
    done = f"{join.complete} of {join.total} hours are complete ({_share(join.complete, join.total)})"
    how = "" if join.airport is None else f" and {_asked(join)}"
    return f"a late subscriber joins{how}: {done}, under way {show_hours(join.active)}"


def _asked(join: Join) -> str:
    return f"asks a relay for {join.airport} only"


def _all(sums: Iterable[Sums]) -> str:
    entries = list(sums)
    return f"{sum(entry.flights for entry in entries):,} flights, mean delay {_delay(entries)}"


def _delay(sums: Iterable[Sums]) -> str:
    mean = _mean(sums)
    return mean if mean == "-" else f"{mean} min"


def _mean(sums: Iterable[Sums]) -> str:
    """The mean of the known delays, in minutes."""
    entries = list(sums)
    known = sum(entry.delays for entry in entries)
    return f"{sum(entry.delay for entry in entries) / known:.1f}" if known else "-"


def _mark(equal: bool) -> Text:
    return Text("✓", style="green") if equal else Text("✗", style="bold red")


def _share(done: int, total: int) -> str:
    return f"{100 * done // total} %" if total else "-"
