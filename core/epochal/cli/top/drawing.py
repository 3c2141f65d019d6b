"""A screen of `epochal top` as lines of text: exactly as many as it has, none longer than it is wide.

It writes to no terminal: the screen's state, a snapshot and a size in, styled lines out. All that comes from the
catalog is made printable here.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from epochal.catalog_api.answers import SegmentInfo, SubscriptionInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.texts import show_seconds, show_time
from epochal.cli.io.output import show_age, show_frontier, show_size
from epochal.cli.io.terminal import printable
from epochal.cli.top.rates import Rate, Segment
from epochal.cli.top.rows import Reader, Row, Snapshot, rows
from epochal.cli.top.screen import Mode, Screen
from epochal.protocol.blockers import HolderKind
from epochal.verdicts import Trouble

T = TypeVar("T")

AROUND = 4
"""Lines of a list that show no stream: the title, an empty line, the column names, the keys."""


def style_of(trouble: Trouble) -> str:
    """How a stream with this trouble is drawn: red if appends are not acknowledged, or wait for a lost writer."""
    match trouble:
        case Trouble.DOWN | Trouble.FULL:
            return "bold red"
        case Trouble.LOST:
            return "red"
        case Trouble.HELD | Trouble.WAITING | Trouble.SLOW:
            return "yellow"
        case Trouble.NONE:
            return ""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table. `brief`: its title on a screen, if it has a shorter one there.

    `least`: cells to which it may be cut, None for never; `worth`: the column of the least is the first to be left out.
    """

    title: str
    cell: Callable[[T], str]
    brief: str = ""
    least: int | None = None
    right: bool = False
    worth: int = 9


# ---- cells ----


def show_rate(number: float | None) -> str:
    """A number per second.

    >>> [show_rate(number) for number in (None, 0, 0.25, 17.2, 1234.5, 25_000_000)]
    ['-', '0', '0.2', '17', '1,234', '25.0M']
    """
    if number is None:
        return "-"
    if number >= 100_000:
        return f"{number / 1e6:.1f}M" if number >= 999_950 else f"{number / 1e3:.0f}k"
    return f"{number:,.0f}" if number == 0 or number >= 9.95 else f"{number:.1f}"


def show_holder(held: Sequence[HeldBack]) -> str:
    """The longest holder of a stream, and how many more there are."""
    if not held:
        return "-"
    more = f" +{len(held) - 1}" if len(held) > 1 else ""
    return _who(held[0].kind, held[0].writer) + more


def _who(kind: str, writer: str | None) -> str:
    if writer is None:
        return kind.replace("_", " ")
    return writer if kind == HolderKind.WRITER else f"{writer} ({kind})"


def show_lag(reader: Reader | None) -> str:
    """How far the slowest reader is: `0` at the stream's frontier, else the frontier that it has received.

    >>> show_lag(Reader("r", (5,), True, 2048)), show_lag(Reader("r", (8,), False, 0)), show_lag(None)
    ('at 5, 2 KiB', '0', '-')
    """
    if reader is None:
        return "-"
    at = "?" if reader.lower is None else "0" if not reader.behind else f"at {_brief(reader.lower)}"
    if not reader.waiting_bytes:
        return at
    waiting = show_size(reader.waiting_bytes)
    return waiting if at == "0" else f"{at}, {waiting}"


def _brief(times: Sequence[Any]) -> str:
    """A frontier; one with a single time has no braces."""
    return show_time(times[0]) if len(times) == 1 else show_frontier(times)


def _for(held: HeldBack | None) -> str:
    return "-" if held is None or held.seconds is None else show_seconds(held.seconds).replace(" ", "")


STREAMS: Sequence[Column[Row]] = (
    Column("STREAM", lambda row: row.name, least=20),
    Column("TROUBLE", lambda row: str(row.trouble), worth=0),
    Column("FRONTIER", lambda row: show_frontier(row.frontier), least=8, worth=7),
    Column("HELD BY", lambda row: show_holder(row.stream.held_back), least=12, worth=8),
    Column("FOR", lambda row: _for(row.held), right=True, worth=6),
    Column("WRITERS", lambda row: str(len(row.stream.writers)), brief="WR", right=True, worth=3),
    Column("SUBS", lambda row: str(row.stream.subscriptions), right=True, worth=2),
    Column("LAG", lambda row: show_lag(row.slowest), least=8, worth=5),
    Column("APP/S", lambda row: show_rate(None if row.rate is None else row.rate.appends), right=True, worth=1),
    Column("REC/S", lambda row: show_rate(None if row.rate is None else row.rate.records), right=True, worth=4),
)


def plain(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The titles and cells of a snapshot, not shortened."""
    return [column.title for column in STREAMS], [[column.cell(row) for column in STREAMS] for row in found]


# ---- tables of a given width ----


def fit(columns: Sequence[Column[T]], cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide each is, so that a line has at most `width` cells.

    The widest that can be cut is cut first. Where all are at their least, those of the least worth are left out.
    """
    natural = [
        max(map(cell_len, [column.brief or column.title, *(row[index] for row in cells)]))
        for index, column in enumerate(columns)
    ]
    least = [
        size if column.least is None else min(size, column.least) for size, column in zip(natural, columns, strict=True)
    ]
    shown = list(range(len(columns)))
    while len(shown) > 1 and sum(least[index] for index in shown) + len(shown) - 1 > width:
        shown.remove(min(shown, key=lambda index: columns[index].worth))
    widths = {index: natural[index] for index in shown}
    room = width - (len(shown) - 1)
    while sum(widths.values()) > room:
        over = {index: size for index, size in widths.items() if size > least[index]}
        if not over:
            return shown, [min(size, max(room, 1)) for size in widths.values()]
        widths[max(over, key=lambda index: over[index])] -= 1
    return shown, list(widths.values())


def table(columns: Sequence[Column[T]], items: Sequence[T], width: int) -> list[str]:
    """Titles, then a line for each item."""
    cells = [[printable(column.cell(item)) for column in columns] for item in items]
    shown, widths = fit(columns, cells, width)
    titles = [column.brief or column.title for column in columns]
    return [
        " ".join(
            _sized(row[index], size, right=columns[index].right) for index, size in zip(shown, widths, strict=True)
        ).rstrip()
        for row in (titles, *cells)
    ]


def _sized(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells; an ellipsis says that something is missing."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)


def _folded(text: str, width: int) -> list[str]:
    """Why a stream is held back: the only text that may take several lines."""
    return textwrap.wrap(printable(text), max(width, 10), subsequent_indent="  ", break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if cell_len(text) <= width else _sized(text, width)


# ---- screens ----


@dataclass(frozen=True, slots=True)
class Status:
    """What the edges of a screen say: the catalog's address, and what is wrong with reading it."""

    catalog: str
    problem: str = ""


def page(height: int) -> int:
    """Lines for streams on a screen of that height."""
    return max(height - AROUND, 1)


def last_scroll(screen: Screen, snapshot: Snapshot, width: int, height: int) -> int:
    """How far the view of one stream can be scrolled, so that its rest still fills the screen."""
    return max(len(_stream(screen, snapshot, width)) - max(height - 3, 0), 0)


def draw(screen: Screen, snapshot: Snapshot, status: Status, width: int, height: int) -> list[Text]:
    """The whole screen."""
    found = rows(snapshot, screen.order, screen.filter)
    head, room = [_title(screen, snapshot, found, status, width), Text()], max(height - 3, 0)
    if screen.mode is Mode.STREAM:
        body = _stream(screen, snapshot, width)
        body = body[min(screen.scroll, max(len(body) - room, 0)) :]
    else:
        body = _list(screen, found, width, height)
    lines = [*head, *islice(body, room)]
    lines += [Text()] * (height - 1 - len(lines))
    return [*lines[: height - 1], _foot(screen, status, width)]


def _title(screen: Screen, snapshot: Snapshot, found: Sequence[Row], status: Status, width: int) -> Text:
    troubled = sum(row.trouble is not Trouble.NONE for row in found)
    streams = f"{len(found)} of {len(snapshot.streams)} streams" if screen.filter else f"{len(found)} streams"
    by = "" if screen.mode is Mode.STREAM else f", by {screen.order}"
    text = f"epochal top  {snapshot.at:%H:%M:%S}  {streams}, {troubled} in trouble{by}  {status.catalog}"
    return Text(_cut(text, width), "bold")


def _foot(screen: Screen, status: Status, width: int) -> Text:
    if screen.mode is Mode.FILTER:
        return Text(_cut(f"/{screen.filter}_   Enter keeps it, Esc drops it", width), "bold")
    if status.problem:
        return Text(_cut(status.problem, width), "bold red")
    if screen.mode is Mode.STREAM:
        return Text(_cut("up down scroll  Esc back  q quit", width), "dim")
    if screen.filter:
        return Text(_cut(f"up down Enter open  q quit  Esc drops the filter: {screen.filter}", width), "dim")
    return Text(_cut("t trouble  n name  r rate  l lag  / filter  up down Enter open  q quit", width), "dim")


def _list(screen: Screen, found: Sequence[Row], width: int, height: int) -> list[Text]:
    if not found:
        return [Text("no stream matches" if screen.filter else "no streams")]
    names = [row.name for row in found]
    place, room = screen.place(names), page(height)
    first = min(max(place - room // 2, 0), max(len(found) - room, 0))
    window = found[first : first + room]
    title, *lines = table(STREAMS, window, width - 1)
    shown = [Text(f" {title}", "bold")]
    for row, line in zip(window, lines, strict=True):
        chosen = row.name == names[place]
        style = f"{style_of(row.trouble)} reverse" if chosen else style_of(row.trouble)
        shown.append(Text(_sized(f">{line}", width) if chosen else f" {line}", style.strip()))
    return shown


def _stream(screen: Screen, snapshot: Snapshot, width: int) -> list[Text]:
    row = next((row for row in rows(snapshot) if row.name == screen.selected), None)
    if row is None:
        return [Text(_cut(f"{screen.selected} is gone; Esc goes back", width))]
    stream = row.stream
    about = (
        f"{row.name}  {stream.phase}  frontier {show_frontier(row.frontier)}  created {show_age(stream.created)} ago"
    )
    held = [each.words for each in stream.held_back] or ["nothing reported"]
    lines = [Text(_cut(about, width), "bold")]
    lines += [Text(_cut(line, width)) for words in held for line in _folded(f"held back: {words}", width)]
    for name, drawn in (
        ("Segments", _segments(row, snapshot.rates, width)),
        ("Writers", _writers(row, width)),
        ("Subscriptions", table(_SUBSCRIPTIONS, row.readers, width) if row.readers else []),
    ):
        lines += [Text(), *([Text(name, "bold"), *map(Text, drawn)] if drawn else [Text(f"{name}: none", "bold")])]
    return lines


# ---- one stream ----


def _segments(row: Row, known: Mapping[Segment, Rate], width: int) -> list[str]:
    def appends(segment: SegmentInfo) -> str:
        rate = known.get((row.name, segment.id))
        return show_rate(None if rate is None else rate.appends)

    def records(segment: SegmentInfo) -> str:
        rate = known.get((row.name, segment.id))
        return show_rate(None if rate is None else rate.records)

    columns: Sequence[Column[SegmentInfo]] = (
        Column("SEGMENT", lambda each: each.id, least=7),
        Column("FRONTIER", lambda each: show_frontier(each.lower), least=8),
        Column("HELD BY", lambda each: _who(each.holders[0].kind, each.holders[0].writer) if each.holders else "-",
               least=8),
        Column("FOR", lambda each: show_seconds(each.holders[0].seconds).replace(" ", "") if each.holders else "-",
               right=True),
        Column("PUBLISHER", lambda each: "none" if each.publisher is None else each.publisher.id, least=8),
        Column("REPORTED", lambda each: _ago(each.reported), right=True, worth=1),
        Column("WAITING", lambda each: show_size(int(each.counters.get("waiting_bytes") or 0)), right=True, worth=2),
        Column("APP/S", appends, right=True, worth=3),
        Column("REC/S", records, right=True, worth=4),
    )  # fmt: skip
    return table(columns, row.stream.segments, width) if row.stream.segments else []


@dataclass(frozen=True, slots=True)
class _Holding:
    """A writer, and the time that it has held longest, if any."""

    writer: str
    segment: str = "-"
    time: str = "-"
    kind: str = "open"
    seconds: float | None = None
    silent: float | None = None


_WRITERS: Sequence[Column[_Holding]] = (
    Column("WRITER", lambda each: each.writer, least=12),
    Column("STATE", lambda each: each.kind),
    Column("SEGMENT", lambda each: each.segment, least=7),
    Column("HOLDS", lambda each: each.time, least=8),
    Column("FOR", lambda each: "-" if each.seconds is None else show_seconds(each.seconds), right=True),
    Column("HEARD", lambda each: _ago(each.silent), right=True),
)


def _writers(row: Row, width: int) -> list[str]:
    """The writers that are open or waited for, the longest holders first."""
    found = {writer: _Holding(writer) for writer in row.stream.writers}
    for segment in row.stream.segments:
        for held in segment.holders:
            if held.writer is None or held.seconds <= (getattr(found.get(held.writer), "seconds", None) or -1.0):
                continue
            kind = "open" if held.kind == HolderKind.WRITER else held.kind
            time = show_time(held.time) if held.time is not None else "-"
            found[held.writer] = _Holding(held.writer, segment.id, time, kind, held.seconds, held.silent)
    ordered = sorted(found.values(), key=lambda each: (-(each.seconds or 0.0), each.writer))
    return table(_WRITERS, ordered, width) if ordered else []


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{show_seconds(seconds)} ago"


def _counted(name: str) -> Callable[[SubscriptionInfo], str]:
    return lambda each: f"{each.counters[name]:,.0f}" if name in each.counters else "-"


_SUBSCRIPTIONS: Sequence[Column[SubscriptionInfo]] = (
    Column("SUBSCRIBER", lambda each: each.subscriber, least=12),
    Column("FRONTIER", lambda each: show_frontier(each.lower), least=8),
    Column("EPOCHS", _counted("epochs"), right=True),
    Column("GAPS", _counted("gaps"), right=True),
    Column("WAITING", lambda each: show_size(int(each.counters.get("waiting_bytes", 0))), right=True),
    Column("AGE", lambda each: show_age(each.since), right=True),
)
