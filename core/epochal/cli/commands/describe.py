"""`epochal describe`: show one stream in full, and first of all what holds its time back."""

import typer

from epochal.catalog_api.answers import ChannelInfo, SegmentInfo, StreamInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.texts import show_time
from epochal.catalog_api.verdicts import DISK_FULL, DISK_FULL_SECONDS, full_disk
from epochal.cli.commands.get import chosen
from epochal.cli.commands.listed_kinds import STREAMS, relay_lag, relay_load, relay_path, stream_frontier
from epochal.cli.doctor.checks import held_trouble
from epochal.cli.io.documents import Document, stream_path
from epochal.cli.io.output import flat, print_document, print_fields, show_age, show_frontier, show_share
from epochal.cli.io.terminal import printable
from epochal.cli.options import (
    DEFAULT_TIMEOUT,
    CatalogOption,
    Format,
    KindArgument,
    NamespaceOption,
    Output,
    StreamsArgument,
    Timeout,
    open_documents,
    run,
)
from epochal.protocol.blockers import HolderKind

EPILOG = """\b
Kinds:
  stream

\b
Examples:
  epochal describe stream demo/flights
  epochal describe stream/demo/flights -o json

"Held back" shows what keeps the times at the frontier from completing: a writer that is open there and has not
advanced, writers that are still to open or to come back, or a segment without a publisher. The rest is what was
declared, each segment with its publisher, frontier, counters and channels, and declared fields whose function is
planned. With -o json and -o yaml the catalog's own object, in which "held_back" says the same, and beside its fields
"listed_relays", the stream's relays as `epochal get relays` has them; -o wide adds addresses and exact key ranges."""

_KEYS = 2**64
_LABELS = {"history_bytes": "History bytes in memory"}
"""Of counters whose name alone would mislead: with storage, most of the history is only on disk."""


def describe(
    kind: KindArgument,
    names: StreamsArgument = None,
    output: Output = Format.TABLE,
    namespace: NamespaceOption = None,
    catalog: CatalogOption = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a stream whole, and what holds its time back."""
    _, streams = chosen(kind, names, namespace, "describe")
    if not streams:
        raise typer.BadParameter("name a stream: epochal describe stream NAME")
    run(_describe(streams, output, catalog, timeout))


async def _describe(streams: list[tuple[str, str]], output: Format, url: str | None, timeout: float) -> None:
    async with open_documents(url, timeout) as documents:
        for number, name in enumerate(streams):
            item = await documents.stream(*name)
            if output is Format.NAME:
                print(printable(f"stream/{STREAMS.key(item)}"))
                continue
            relays = await documents.all(f"{stream_path(*name)}/relays") if item.get("relays") else []
            if output.is_document:
                if number and output is Format.YAML:
                    print("---")
                print_document({**item, "listed_relays": relays}, output is Format.YAML)
            else:
                print("\n" if number else "", end="")
                print_stream(item, wide=output is Format.WIDE)
                if relays:
                    _print_relays(relays)


def print_stream(item: Document, *, wide: bool) -> None:
    """Print one stream as people read it."""
    stream = StreamInfo.from_json(item)
    print_fields(
        [
            ("Stream", stream.qualified),
            ("Phase", stream.phase),
            *_degraded(stream),
            ("Frontier", stream_frontier(item)),
            *_held_back(item),
            *_trouble(stream),
            ("Writers", ", ".join(stream.writers) or "none open"),
            ("Subscriptions", str(item.get("subscriptions", "-"))),
            ("Created", f"{stream.created} ({show_age(stream.created)} ago)"),
            ("Generation", str(stream.generation)),
            ("Uid", stream.uid),
        ]
    )
    print("\nSpec:")
    print_fields(flat(stream.manifest["spec"]), indent="  ")
    for segment, document in zip(stream.segments, item["segments"], strict=True):
        print(f"\nSegment {printable(segment.id)}:")
        print_fields(_segment(segment, document, wide), indent="  ")
    print("\nNot yet in effect:" if stream.not_in_effect else "\nNot yet in effect:  nothing")
    for field in item.get("not_in_effect", ()):
        print(f"  {field['path']}: {field['note']}")


def _print_relays(relays: list[Document]) -> None:
    """Each relay with its name, state, load, lag, way to the publishers, what it reads, and its HTTP."""
    print("\nRelays:")
    print_fields([(relay["id"], _relay(relay)) for relay in relays], indent="  ")


def _relay(item: Document) -> str:
    load, lag = f"load {relay_load(item)}", f"lag {relay_lag(item)}"
    reads = f"reads {item.get('filter') or 'everything'}"
    http = item["addresses"].get("http")
    at = [f"HTTP at {http}"] if http else []
    return ", ".join((item["name"], item["state"], load, lag, f"path {relay_path(item)}", reads, *at))


def _degraded(stream: StreamInfo) -> list[tuple[str, str]]:
    """What an operator reports as the condition Degraded, with its reason.

    Disks that are full, and lost writers that are waited for (E46).
    """
    full = [each for segment in stream.segments if (each := full_disk(segment.id, segment.counters))]
    lost = sorted({held.writer for held in stream.held_back if held.kind == HolderKind.LOST and held.writer})
    said = [f"DiskFull: {each.words}" for each in full]
    said += [f"WriterLost: it waits for {', '.join(lost)}"] if lost else []
    return [("Degraded" if not number else "", words) for number, words in enumerate(said)]


def _held_back(item: Document) -> list[tuple[str, str]]:
    """What holds time back, in words: nothing once the stream is complete."""
    held = [HeldBack.from_json(holder).words for holder in item.get("held_back") or ()]
    first = "nothing: it is complete" if item["phase"] == "Complete" else "nothing reported"
    return [("Held back" if number == 0 else "", words) for number, words in enumerate(held or [first])]


def _trouble(stream: StreamInfo) -> list[tuple[str, str]]:
    """What `epochal doctor` would say of that, and `epochal top` calls held."""
    counters = [segment.counters for segment in stream.segments]
    found = held_trouble(stream.qualified, stream.held_back, bool(stream.writers), counters)
    if found is None or stream.phase == "Complete":
        return []
    return [("Trouble", f"{found.seen.removeprefix(f'{stream.qualified}: ')}; {found.advice}")]


def _segment(segment: SegmentInfo, document: Document, wide: bool) -> list[tuple[str, str]]:
    share = f"{100 * segment.lo / _KEYS:.3g} % to {100 * segment.hi / _KEYS:.3g} %"
    fields = [
        ("Keys", f"{share}, [{segment.lo}, {segment.hi})" if wide else share),
        ("State", segment.state + (", finishing" if segment.finishing else "")),
        ("Frontier", show_frontier(segment.lower)),
        *(("Held at", _holder(segment.id, holder)) for holder in document.get("holders") or ()),
        ("Incarnation", str(segment.incarnation)),
    ]
    if segment.below:
        times = ", ".join(map(show_time, segment.below))
        fields.append(("Lost", f"open epochs up to {times}: the previous publisher ended without its history"))
    waiting = segment.counters.get("waiting_bytes", 0)
    if waiting:
        fields.append(("Waiting", f"{waiting:,} bytes of appends, until the catalog has recorded their times"))
    if segment.publisher is None:
        return [*fields, ("Publisher", "none")]
    verified = "" if segment.publisher.verified else ", not verified since the catalog started"
    fields.append(("Publisher", f"{segment.publisher.id} ({show_age(segment.publisher.since)}{verified})"))
    if not wide and "http" in segment.publisher.addresses:
        fields.append(("Http at", segment.publisher.addresses["http"]))
    if wide:
        fields.extend((f"{kind.capitalize()} at", address) for kind, address in segment.publisher.addresses.items())
    fields.extend(
        (_LABELS.get(key) or key.replace("_", " ").capitalize(), f"{value:,}")
        for key, value in sorted(segment.counters.items())
        if isinstance(value, int | float) and key not in (DISK_FULL, DISK_FULL_SECONDS)  # words say it above
    )
    fields.extend(("Channel" if not number else "", _channel(each)) for number, each in enumerate(segment.channels))
    return fields


def _channel(channel: ChannelInfo) -> str:
    words = f"{channel.filter}: {channel.subscribers:,} of the subscribers, {show_share(channel.share)} of the bytes"
    return f"{words}, {channel.coarse:,} coarse" if channel.coarse else words


def _holder(segment: str, holder: Document) -> str:
    words = HeldBack.from_json({**holder, "segment": segment}).words
    return words.removeprefix(f"segment {segment} stands at ")
