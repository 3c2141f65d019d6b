"""How streams, segments and publishers look in JSON.

Apart from the routes because several answers show the same things, and from the state because records know no format.
"""

from collections.abc import Mapping
from typing import Any

from epochal_catalog.records import RegistrationRecord, SegmentRecord
from epochal_catalog.state import State, StreamEntry


def stream(state: State, entry: StreamEntry, *, with_segments: bool = True) -> dict[str, Any]:
    """A stream, with its segments unless they are shown beside it."""
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
    }
    if with_segments:
        shown["segments"] = segments(state, entry)
    return shown


def phase(state: State, entry: StreamEntry) -> str:
    """`Complete` for ever once recorded; else `Ready` while every open segment has a live publisher; else `Pending`."""
    if entry.complete:
        return "Complete"
    return "Ready" if state.served(entry) else "Pending"


def segments(state: State, entry: StreamEntry) -> list[dict[str, Any]]:
    """All segments of a stream. Bounds are decimal strings: 2^64 does not fit a JSON number everywhere."""
    return [_segment(state, segment) for segment in entry.segments.values()]


def _segment(state: State, segment: SegmentRecord) -> dict[str, Any]:
    owner = state.publisher_of(segment)
    lease = state.leases.get(segment.token)
    counters: Mapping[str, float] = lease.counters.get(segment.id, {}) if lease is not None else {}
    return {
        "id": segment.id,
        "lo": str(segment.lo),
        "hi": str(segment.hi),
        "state": segment.state,
        "incarnation": segment.incarnation,
        "lower": segment.lower,
        "finishing": segment.finishing,
        "publisher": None if owner is None else _owner(state, owner),
        "counters": dict(counters),
    }


def _owner(state: State, owner: RegistrationRecord) -> dict[str, Any]:
    lease = state.leases.get(owner.token)
    return {
        "id": owner.publisher,
        "token": owner.token,
        "verified": lease is not None and lease.verified,
        "addresses": owner.addresses,
        "since": owner.since,
    }


def publisher(state: State, record: RegistrationRecord) -> dict[str, Any]:
    """A registration, with what became of it."""
    return {
        **_owner(state, record),
        "instance": record.instance,
        "stream": record.stream,
        "uid": record.uid,
        "segments": record.segments,
        "live": state.leases.live(record.token),
        "superseded": not state.current(record),
    }
