"""The catalog's streams, segments and publishers as JSON.

Several answers show the same objects. `now` is monotonic seconds. Look-ups are made as dicts directly: making the
values of `epochal.catalog_api` first takes a third longer. A test compares the two.
"""

from typing import Any

from epochal.catalog_api.blockers import HeldBack
from epochal.protocol.times import to_json
from epochal_catalog.domain import blockers
from epochal_catalog.domain.kinds.relays import RELAYS
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS
from epochal_catalog.domain.registrations import PUBLISHERS, RegistrationRecord
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, SegmentRecord, StreamEntry


def stream(state: CatalogState, entry: StreamEntry, now: float, *, with_segments: bool = True) -> dict[str, Any]:
    """A stream; without its segments if the answer has them elsewhere."""
    record = entry.record
    shown: dict[str, Any] = {
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "generation": record.generation,
        "phase": phase(state, entry),
        "manifest": record.manifest,
        "writers": sorted({writer for segment in entry.segments.values() for writer in segment.writers}),
        "created": record.created,
        "not_in_effect": entry.not_in_effect,
        "held_back": [_held_back(item) for item in blockers.held_back(state, entry, now)],
        "subscriptions": state[SUBSCRIPTIONS].count(record.uid),
        "relays": state[RELAYS].count(record.uid),
    }
    if with_segments:
        shown["segments"] = segments(state, entry, now)
    return shown


def lookup(state: CatalogState, entry: StreamEntry, now: float) -> dict[str, Any]:
    """The addresses for a stream."""
    head = stream(state, entry, now, with_segments=False)
    return {"stream": head, "segments": segments(state, entry, now)}


def reserved(state: CatalogState) -> dict[str, Any]:
    """The catalog's own stream (S26)."""
    return {
        "name": "$catalog",
        "identity": state.identity,
        "revision": state.revision,
        "first_revision": state.history.floor,
        "watch": "/v1/watch",
        "streams": len(state[STREAMS]),
        "publishers": len(state[PUBLISHERS]),
        "subscriptions": len(state[SUBSCRIPTIONS]),
        "relays": len(state[RELAYS]),
    }


def phase(state: CatalogState, entry: StreamEntry) -> str:
    """`Complete` once that is recorded; else `Ready` while every open segment has a live publisher; else `Pending`."""
    if entry.complete:
        return "Complete"
    return "Ready" if state.served(entry) else "Pending"


def segments(state: CatalogState, entry: StreamEntry, now: float) -> list[dict[str, Any]]:
    """All segments of a stream. Bounds are decimal strings: 2^64 does not fit a JSON number everywhere."""
    return [segment(state, item, now) for item in entry.segments.values()]


def segment(state: CatalogState, segment: SegmentRecord, now: float) -> dict[str, Any]:
    """One segment."""
    owner = state.publisher_of(segment)
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
        "publisher": None if owner is None else _owner(state, owner),
        "reported": None if report is None else max(now - report[0], 0.0),
        "counters": {} if report is None else report[1].counters,
        "holders": [_holder(held) for held in blockers.holders(state, segment, now)] if owner is not None else [],
        "channels": [] if report is None or owner is None else [channel.to_json() for channel in report[1].channels],
    }


def _owner(state: CatalogState, owner: RegistrationRecord) -> dict[str, Any]:
    lease = state.leases.get(owner.token)
    return {
        "id": owner.publisher,
        "token": owner.token,
        "verified": lease is not None and lease.verified,
        "addresses": owner.addresses,
        "since": owner.since,
    }


def publisher(state: CatalogState, record: RegistrationRecord) -> dict[str, Any]:
    """A registration, and whether it is live or superseded."""
    return {
        **_owner(state, record),
        "instance": record.instance,
        "stream": record.stream,
        "uid": record.uid,
        "segments": record.segments,
        "live": state.leases.live(record.token),
        "superseded": not state.current(record),
    }


def _held_back(held: HeldBack) -> dict[str, Any]:
    return {"segment": held.segment, **_holder(held), "words": held.words}


def _holder(held: HeldBack) -> dict[str, Any]:
    return {
        "time": None if held.time is None else to_json(held.time),
        "kind": held.kind,
        "writer": held.writer,
        "seconds": held.seconds,
        "silent": held.silent,
    }
