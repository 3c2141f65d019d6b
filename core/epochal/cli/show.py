"""`epochal get` and `epochal describe`: what is declared, and how it fares.

Apart from `declare` because these only read.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from epochal.cli.options import DEFAULT_TIMEOUT, Catalog, Namespace, Timeout, note, open_catalog, run
from epochal.cli.output import flat, merge_frontiers, print_fields, print_table, show_age, show_frontier
from epochal.client.catalog_types import PublisherInfo, SegmentInfo, StreamInfo
from epochal.resources import DEFAULT_NAMESPACE, parse_stream_name

GET_EPILOG = """\b
Examples:
  epochal get streams                 # of all namespaces
  epochal get publishers -n demo

On a terminal a table; else plain lines, columns two spaces apart, nothing cut off. FRONTIER holds the least times that
can still arrive: all that are not at or after one of them are complete."""

DESCRIBE_EPILOG = """\b
Example:
  epochal describe stream demo/flights"""

Kind = Annotated[str, typer.Argument(metavar="streams|publishers", help="What to list.")]


def get(
    kind: Kind,
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List streams or publishers."""
    match kind:
        case "streams" | "stream":
            run(_get_streams(namespace, catalog, timeout))
        case "publishers" | "publisher":
            run(_get_publishers(namespace, catalog, timeout))
        case _:
            raise typer.BadParameter(f"'{kind}' cannot be listed; write streams or publishers")


async def _get_streams(namespace: str | None, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        streams = [stream for stream in await catalog.list() if namespace in (None, stream.namespace)]
    if not streams:
        note("no streams; declare one with: epochal apply -f FILE")
        return
    columns = ["NAMESPACE", "NAME", "SEGMENTS", "READY", "PHASE", "FRONTIER", "WRITERS", "AGE"]
    print_table(columns, [_stream_row(stream) for stream in sorted(streams, key=lambda stream: stream.qualified)])


def _stream_row(stream: StreamInfo) -> list[str]:
    segments = [segment for segment in stream.segments if segment.state == "open"]
    ready = sum(segment.publisher is not None for segment in segments)
    frontier = merge_frontiers(segment.lower for segment in segments)
    return [
        stream.namespace,
        stream.name,
        str(len(segments)),
        f"{ready}/{len(segments)}",
        stream.phase,
        show_frontier(frontier),
        str(len(stream.writers)),
        show_age(stream.created),
    ]


async def _get_publishers(namespace: str | None, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        publishers = await catalog.publishers()
    chosen = [item for item in publishers if namespace is None or item.stream.startswith(f"{namespace}/")]
    if not chosen:
        note("no publishers; `epochal get streams` shows which streams wait for theirs")
        return
    columns = ["PUBLISHER", "STREAM", "SEGMENTS", "VERIFIED", "EVENTS", "HTTP", "AGE"]
    print_table(columns, [_publisher_row(item) for item in sorted(chosen, key=lambda item: item.id)])


def _publisher_row(publisher: PublisherInfo) -> list[str]:
    return [
        publisher.id,
        publisher.stream,
        ",".join(publisher.segments),
        "yes" if publisher.verified else "no",
        publisher.addresses.get("events", "-"),
        publisher.addresses.get("http", "-"),
        show_age(publisher.since),
    ]


def describe(
    kind: Annotated[str, typer.Argument(metavar="stream", help="What to describe: stream.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="NAME or NS/NAME.")],
    namespace: Namespace = None,
    catalog: Catalog = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a stream: what is declared, its segments, publishers, frontiers and writers."""
    if kind not in ("stream", "streams"):
        raise typer.BadParameter(f"'{kind}' cannot be described; write: epochal describe stream NAME")
    run(_describe(*parse_stream_name(name, namespace or DEFAULT_NAMESPACE), catalog, timeout))


async def _describe(namespace: str, name: str, url: str | None, timeout: float) -> None:
    async with open_catalog(url, timeout) as catalog:
        stream = await catalog.get(namespace, name)
    print_fields(
        [
            ("Stream", stream.qualified),
            ("Uid", stream.uid),
            ("Generation", str(stream.generation)),
            ("Phase", stream.phase),
            ("Created", f"{stream.created} ({show_age(stream.created)} ago)"),
            ("Frontier", show_frontier(merge_frontiers(s.lower for s in stream.segments if s.state == "open"))),
            ("Writers", ", ".join(stream.writers) or "none open"),
        ]
    )
    print("\nSpec:")
    print_fields(flat(stream.manifest["spec"]), indent="  ")
    for segment in stream.segments:
        print(f"\nSegment {segment.id}:")
        print_fields(_segment_fields(segment), indent="  ")
    print("\nNot yet in effect:" if stream.not_in_effect else "\nNot yet in effect:  nothing")
    for field in stream.not_in_effect:
        print(f"  {_not_in_effect(field)}")


def _segment_fields(segment: SegmentInfo) -> list[tuple[str, str]]:
    fields = [
        ("Keys", f"[{segment.lo}, {segment.hi})"),
        ("State", segment.state + (", finishing" if segment.finishing else "")),
        ("Incarnation", str(segment.incarnation)),
        ("Frontier", show_frontier(segment.lower)),
    ]
    if segment.publisher is None:
        return [*fields, ("Publisher", "none")]
    verified = "" if segment.publisher.verified else ", not verified since the catalog started"
    fields.append(("Publisher", f"{segment.publisher.id} ({show_age(segment.publisher.since)}{verified})"))
    fields.extend((kind.capitalize(), address) for kind, address in segment.publisher.addresses.items())
    fields.extend(
        (key.replace("_", " ").capitalize(), f"{value:,}")
        for key, value in sorted(segment.counters.items())
        if _number(value)
    )
    return fields


def _number(value: object) -> bool:
    return isinstance(value, int | float)


def _not_in_effect(field: Any) -> str:
    return f"{field['path']}: {field['note']}" if isinstance(field, Mapping) else ": ".join(map(str, field[::2]))
