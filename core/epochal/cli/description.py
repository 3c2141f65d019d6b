"""One stream in full as text: for `epochal describe`, and in the archive of `epochal report`."""

from epochal.catalog_api.answers import ChannelInfo, SegmentInfo, StreamInfo
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.requests import DISK_FULL, DISK_FULL_SECONDS
from epochal.catalog_api.texts import show_time
from epochal.cli.io.documents import Document
from epochal.cli.io.output import flat, print_fields, show_age, show_frontier, show_share
from epochal.cli.io.terminal import printable
from epochal.cli.listed_kinds import stream_frontier
from epochal.verdicts import full_disks, judge, lost_writers

_KEYS = 2**64
_LABELS = {"history_bytes": "History bytes in memory"}
"""Labels of counters whose name would mislead: with storage, most of the history is only on disk."""


def print_stream(item: Document, *, wide: bool) -> None:
    """Print one stream as text."""
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


def _degraded(stream: StreamInfo) -> list[tuple[str, str]]:
    """What an operator reports as the condition Degraded, with its reason: full disks, and lost writers (E46 hold)."""
    said = [f"DiskFull: {each.words}" for each in full_disks(stream)]
    if lost := lost_writers(stream):
        said.append(f"WriterLost: it waits for {', '.join(lost)}")
    return [("Degraded" if not number else "", words) for number, words in enumerate(said)]


def _held_back(item: Document) -> list[tuple[str, str]]:
    """What holds time back, in words: nothing once the stream is complete."""
    held = [HeldBack.from_json(holder).words for holder in item.get("held_back") or ()]
    first = "nothing: it is complete" if item["phase"] == "Complete" else "nothing reported"
    return [("Held back" if number == 0 else "", words) for number, words in enumerate(held or [first])]


def _trouble(stream: StreamInfo) -> list[tuple[str, str]]:
    """What `epochal doctor` says of the stream, and what to do."""
    said = [f"{each.words}; {each.advice}" for each in judge(stream)]
    return [("Trouble" if not number else "", words) for number, words in enumerate(said)]


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
        if isinstance(value, int | float) and key not in (DISK_FULL, DISK_FULL_SECONDS)  # `Degraded` says it in words
    )
    fields.extend(("Channel" if not number else "", _channel(each)) for number, each in enumerate(segment.channels))
    return fields


def _channel(channel: ChannelInfo) -> str:
    words = f"{channel.filter}: {channel.subscribers:,} of the subscribers, {show_share(channel.share)} of the bytes"
    return f"{words}, {channel.coarse:,} coarse" if channel.coarse else words


def _holder(segment: str, holder: Document) -> str:
    words = HeldBack.from_json({**holder, "segment": segment}).words
    return words.removeprefix(f"segment {segment} is at ")
