"""What `get` lists: for each kind its path at the catalog, its name and its columns.

A kind is one row of the table here and nothing else; the command itself knows no columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from epochal.catalog_api.texts import show_seconds
from epochal.cli.io.documents import Document
from epochal.cli.io.output import merge_frontiers, show_age, show_frontier, show_share, show_size
from epochal.protocol.times import Time, from_json

Cell = Callable[[Document], str]

_GROWING = ("AGE", "HELD BY")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object. `path`: where all are listed; `columns`, and with `-o wide` also `more`, make a row."""

    name: str
    path: str
    columns: Sequence[tuple[str, Cell]]
    more: Sequence[tuple[str, Cell]]
    stream: Cell
    """`namespace/name` of the object's stream."""
    key: Cell
    """The name of an object among its kind, for `-o name`."""
    nothing: str
    """Printed on standard error when there is none."""

    @property
    def plural(self) -> str:
        """The kind in the plural."""
        return f"{self.name}s"

    def header(self, wide: bool) -> list[str]:
        """Names of the columns."""
        return [title for title, _ in self._shown(wide)]

    def row(self, item: Document, wide: bool) -> list[str]:
        """One object's cells."""
        return [cell(item) for _, cell in self._shown(wide)]

    def state(self, item: Document) -> list[str]:
        """The cells whose change gives an object a new row under --watch: all but ages and durations."""
        return [cell(item) for title, cell in self._shown(True) if title not in _GROWING]

    def _shown(self, wide: bool) -> list[tuple[str, Cell]]:
        return [*self.columns, *(self.more if wide else ())]


def _field(name: str) -> Cell:
    return lambda item: _text(item.get(name))


def _text(value: Any) -> str:
    if isinstance(value, list | dict):  # a dict shows its keys: the segments of a publisher
        return ",".join(map(_text, value)) or "-"
    return "-" if value is None or value == "" else str(value)


def _yes(name: str) -> Cell:
    return lambda item: "yes" if item.get(name, True) else "no"


def _age(name: str) -> Cell:
    return lambda item: show_age(item.get(name) or "")


def _number(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else "-"


# ---- streams ----


def _qualified(item: Document) -> str:
    return f"{item['namespace']}/{item['name']}"


def _ready(item: Document) -> str:
    segments = [segment for segment in item["segments"] if segment["state"] == "open"]
    return f"{sum(segment['publisher'] is not None for segment in segments)}/{len(segments)}"


def stream_frontier(item: Document) -> str:
    """The stream's lower frontier, merged over its open segments."""
    return show_frontier(merge_frontiers(_times(each["lower"]) for each in item["segments"] if each["state"] == "open"))


def _times(listed: Sequence[Any] | None) -> list[Time] | None:
    return None if listed is None else [from_json(time) for time in listed]


def _held_by(item: Document) -> str:
    held = item.get("held_back")
    if not held:
        return "-"
    longest = held[0]
    lasting = "" if longest["seconds"] is None else f" for {show_seconds(longest['seconds'])}"
    return f"{longest['writer'] or longest['kind']}{lasting}"


def _declared(*path: str) -> Cell:
    def cell(item: Document) -> str:
        value: Any = item["manifest"]["spec"]
        for part in path:
            value = value[part]
        return _text(value)

    return cell


STREAMS = Kind(
    name="stream",
    path="/v1/streams",
    columns=(
        ("NAMESPACE", _field("namespace")),
        ("NAME", _field("name")),
        ("READY", _ready),
        ("PHASE", _field("phase")),
        ("FRONTIER", stream_frontier),
        ("WRITERS", lambda item: str(len(item.get("writers") or ()))),
        ("SUBS", lambda item: _text(item.get("subscriptions"))),
        ("AGE", _age("created")),
    ),
    more=(
        ("HELD BY", _held_by),
        ("TIMES", _declared("time", "shape")),
        ("ENCODING", _declared("payload", "encoding")),
        ("GENERATION", _field("generation")),
        ("UID", _field("uid")),
    ),
    stream=_qualified,
    key=_qualified,
    nothing="no streams; declare one with: epochal apply -f FILE",
)

# ---- publishers ----


def lease_state(item: Document) -> str:
    """The state of a publisher's lease."""
    if item.get("superseded"):
        return "superseded"
    if not item.get("live", True):
        return "lapsed"
    return "live" if item.get("verified", True) else "unverified"


def _address(socket: str) -> Cell:
    return lambda item: _text((item.get("addresses") or {}).get(socket))


PUBLISHERS = Kind(
    name="publisher",
    path="/v1/publishers",
    columns=(
        ("PUBLISHER", _field("id")),
        ("STREAM", _field("stream")),
        ("SEGMENTS", _field("segments")),
        ("LEASE", lease_state),
        ("AGE", _age("since")),
    ),
    more=tuple((socket.upper(), _address(socket)) for socket in ("events", "requests", "ingest", "http")),
    stream=_field("stream"),
    key=_field("id"),
    nothing="no publishers; `epochal get streams` shows which streams wait for theirs",
)

# ---- writers and subscriptions ----

WRITERS = Kind(
    name="writer",
    path="",  # the catalog lists the writers of one stream
    columns=(
        ("WRITER", _field("writer")),
        ("STREAM", _field("stream")),
        ("SESSION", _field("session")),
        ("OPEN", _yes("open")),
    ),
    more=(),
    stream=_field("stream"),
    key=lambda item: f"{item['stream']}/{item['writer']}",
    nothing="no writers; `epochal pub STREAM` is one while it publishes",
)


def _lower(item: Document) -> str:
    lower = item.get("lower")
    return show_frontier(_times(lower))


def _lag(item: Document) -> str:
    """How many complete epochs wait for the program, and for how long something has waited."""
    counters = item.get("counters") or {}
    epochs, seconds = counters.get("waiting_epochs"), counters.get("waiting_seconds")
    if epochs is None or seconds is None:  # it has not reported yet
        return "-"
    return f"{epochs:.0f}/{seconds:.1f}s" if seconds else "0"


def _counter(name: str) -> Cell:
    return lambda item: _number((item.get("counters") or {}).get(name))


def _received(item: Document) -> str:
    received = (item.get("counters") or {}).get("received_bytes")
    return "-" if received is None else show_size(int(received))


def _share_of_received(name: str) -> Cell:
    """What share of the bytes that were sent to a reader these are; "-" before its first report."""

    def cell(item: Document) -> str:
        counters = item.get("counters") or {}
        part, whole = counters.get(name), counters.get("received_bytes")
        return "-" if part is None or not whole else show_share(part / whole)

    return cell


SUBSCRIPTIONS = Kind(
    name="subscription",
    path="/v1/subscriptions",
    columns=(
        ("SUBSCRIBER", _field("subscriber")),
        ("STREAM", _field("stream")),
        ("FRONTIER", _lower),
        ("EPOCHS", _counter("epochs")),
        ("LAG", _lag),
        ("GAPS", _counter("gaps")),
        ("WAITING", _counter("waiting_bytes")),
        ("RECEIVED", _received),
        ("UNWANTED", _share_of_received("unwanted_bytes")),
        ("FIREHOSE", _share_of_received("firehose_bytes")),
        ("AGE", _age("since")),
    ),
    more=(("VERIFIED", _yes("verified")), ("RECORDS", _counter("received_records")), ("ABORTED", _counter("aborted")),
          ("HEALED", _counter("healed")), ("RELAYED", _counter("relayed")), ("ID", _field("id"))),
    stream=_field("stream"),
    key=_field("id"),
    nothing="no subscriptions; `epochal sub STREAM` is one while it runs",
)  # fmt: skip

# ---- relays ----


def relay_load(item: Document) -> str:
    """The subscribers of a relay, and how many it takes at most."""
    return f"{item['load']}/{item['capacity']}"


def relay_lag(item: Document) -> str:
    """How far a relay is behind its upstream."""
    return "-" if item.get("lag") is None else show_seconds(item["lag"])


def relay_path(item: Document) -> str:
    """The relays between a relay and the publishers."""
    return ",".join(item.get("path") or ()) or "direct"


RELAYS = Kind(
    name="relay",
    path="/v1/relays",
    columns=(
        ("NAME", _field("name")),
        ("ID", _field("id")),
        ("STREAM", _field("stream")),
        ("STATE", _field("state")),
        ("LOAD", relay_load),
        ("LAG", relay_lag),
        ("PATH", relay_path),
        ("AGE", _age("since")),
    ),
    more=(
        ("UPSTREAM", _field("upstream")),
        ("FILTER", _field("filter")),
        ("VERIFIED", _yes("verified")),
        *((socket.upper(), _address(socket)) for socket in ("events", "requests", "http")),
    ),
    stream=_field("stream"),
    key=_field("id"),
    nothing="no relays; subscribers read from the publishers",
)

KINDS = (STREAMS, PUBLISHERS, WRITERS, SUBSCRIPTIONS, RELAYS)


def find_kind(word: str) -> Kind | None:
    """The kind of that name, singular or plural."""
    return next((kind for kind in KINDS if word in (kind.name, kind.plural)), None)


def similar_kind(word: str) -> Kind | None:
    """The kind that the user may have meant: one that begins with the word, else one with a similar spelling."""
    begun = [kind for kind in KINDS if len(word) > 1 and kind.name.startswith(word.removesuffix("s"))]
    close = [kind for kind in KINDS if get_close_matches(word, [kind.name, kind.plural], 1)]
    return next(iter([*begun, *close]), None)
