"""Segments: the key ranges of a stream, each with what its publisher reports of it.

They have no rules of their own: they come and go with their stream, and publishers take them over.
"""

from functools import partial
from itertools import chain
from typing import Any

from epochal.catalog_api import streams
from epochal.catalog_api.blockers import HeldBack
from epochal.protocol.times import to_json
from epochal_catalog.domain import blockers
from epochal_catalog.domain.kinds.publishers import as_owner
from epochal_catalog.domain.noun import Items, Listing, Noun
from epochal_catalog.domain.pages import PageRequest, after
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import SEGMENTS, STREAMS, SegmentRecord, StreamEntry


def views(state: CatalogState, entry: StreamEntry, now: float) -> list[dict[str, Any]]:
    """All segments of a stream. Bounds are decimal strings: 2^64 does not fit a JSON number everywhere."""
    return [view(state, item, now) for item in entry.segments.values()]


def view(state: CatalogState, segment: SegmentRecord, now: float) -> dict[str, Any]:
    """A segment; made as a dict, because making the value of `epochal.catalog_api` first takes a third longer."""
    publisher = state.publisher_of(segment)
    report = state.report_of(segment)
    return {
        "id": segment.id,
        "lo": str(segment.lo),
        "hi": str(segment.hi),
        "state": segment.state,
        "incarnation": segment.incarnation,
        "lower": segment.lower,
        "below": [] if report is None else list(report[1].below),
        "finishing": segment.finishing,
        "publisher": None if publisher is None else as_owner(state, publisher),
        "reported": None if report is None else max(now - report[0], 0.0),
        "counters": {} if report is None else report[1].counters,
        "holders": [holder(held) for held in blockers.holders(state, segment, now)] if publisher is not None else [],
        "channels": [channel.to_json() for channel in report[1].channels] if report and publisher else [],
    }


def holder(held: HeldBack) -> dict[str, Any]:
    """Who holds a segment's time back."""
    return {
        "time": None if held.time is None else to_json(held.time),
        "kind": held.kind,
        "writer": held.writer,
        "seconds": held.seconds,
        "silent": held.silent,
    }


def _items(state: CatalogState, asked: PageRequest, _uid: str | None, now: float) -> Items:
    """Segments of all streams, by stream and key range."""
    known = state[STREAMS]
    name, _, text = asked.after.rpartition("/")
    last = int(text) if text.isdigit() else -1
    here = [name] if name in known.names else []

    def shown(stream: str, segment: SegmentRecord) -> dict[str, Any]:
        return {"stream": stream, **view(state, segment, now)}

    for qualified in filter(asked.wants, chain(here, after(known.names, name))):
        for at, segment in enumerate(known.named(qualified).segments.values()):
            if qualified != name or at > last:
                yield f"{qualified}/{at}", partial(shown, qualified, segment)


NOUN = Noun(SEGMENTS, routes=(Listing(streams.LIST_SEGMENTS, _items),))
