"""Streams: how one is declared, changed and deleted, what a look-up expects of it, and what is shown of it.

`now` is monotonic seconds. Look-ups are made as dicts directly: making the values of `epochal.catalog_api` first takes
a third longer. A test compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from epochal.catalog_api import streams
from epochal.catalog_api.blockers import HeldBack
from epochal.errors import ManifestError, Problem, SchemaMismatch, StreamError
from epochal.protocol.segments import key_ranges
from epochal.protocol.times import TimeShape
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import StreamManifest, check_new, immutable_changes
from epochal.resources.schemas import Schema, differences
from epochal.service.errors import InvalidRequest
from epochal_catalog.domain import blockers
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kinds import segments
from epochal_catalog.domain.kinds.relays import RELAYS
from epochal_catalog.domain.kinds.subscriptions import SUBSCRIPTIONS
from epochal_catalog.domain.noun import ByHand, Call, Items, Listing, Noun, Write
from epochal_catalog.domain.pages import PageRequest, after
from epochal_catalog.domain.registrations import PUBLISHERS
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, SegmentRecord, StreamEntry, StreamRecord, check_name
from epochal_catalog.errors import ReservedName


class ImmutableField(InvalidRequest):
    """A manifest that changes what cannot change while the stream lives."""

    code = "immutable_field"


class OtherStream(StreamError):
    """The stream of that name is not the one that the caller meant: that was deleted, and created again since."""

    code = "other_stream"


@dataclass(frozen=True, slots=True)
class ExpectedStream:
    """What a caller of the lookup expects from the stream; None is not checked (S28)."""

    time: TimeShape | None = None
    encoding: str | None = None
    schema: Schema | None = None


def apply(rules: Rules, manifest: StreamManifest, uid: str, at: str) -> Decision[tuple[StreamEntry, bool]]:
    """Declare a stream, or change its declaration; the answer says whether the stream is new.

    A new stream gets `uid`. The same manifest again changes nothing. Raises `ReservedName`, `ImmutableField`, and
    `ManifestError` for one that is too large, or that can never run.
    """
    namespace, name = manifest.namespace, manifest.name
    check_name(namespace, name)

    def answer(created: bool) -> Callable[[], tuple[StreamEntry, bool]]:
        return lambda: (rules.state[STREAMS].stream(namespace, name), created)

    entry, document = rules.state[STREAMS].find(namespace, name), manifest.to_document()
    if entry is None:
        check_new(document)
        check_feasible(manifest)
        _check_ports(rules.state, manifest)
        segments = (
            SegmentRecord(uid, str(index), span.lo, span.hi)
            for index, span in enumerate(key_ranges(manifest.spec.segments))
        )
        record = StreamRecord(uid, namespace, name, 1, document, at)
        return rules.write(answer(True), record, *segments)
    problems = immutable_changes(entry.manifest, manifest)
    if problems:
        raise ImmutableField(f"the stream {manifest.qualified} exists, and these fields cannot change", problems)
    if document == entry.record.manifest:
        return Decision((), answer(False))
    check_new(document)
    check_feasible(manifest)
    _check_ports(rules.state, manifest)
    record = replace(entry.record, manifest=document, generation=entry.record.generation + 1)
    return rules.write(answer(False), record)


def _check_ports(state: CatalogState, manifest: StreamManifest) -> None:
    """Raises `ManifestError` for a port of local mode's machine that another stream names."""
    ports = manifest.local_ports
    if not ports:
        return
    others = (entry.manifest for entry in state[STREAMS] if entry.qualified != manifest.qualified)
    taken = {port: (path, other.qualified) for other in others for path, port in other.local_ports.items()}
    problems = [
        Problem(path, f"is {port}, as {taken[port][0]} of {taken[port][1]} is", "choose another port")
        for path, port in ports.items()
        if port in taken
    ]
    if problems:
        raise ManifestError(f"the stream {manifest.qualified} and another one cannot have the same port", problems)


def delete(rules: Rules, call: Call[None]) -> Decision[None]:
    """Delete a stream with its sessions; its publishers get `StreamGone` when they renew. Raises `StreamNotFound`.

    With `uid` in the query, delete only this stream; raises `OtherStream` when another stream has the name now.
    """
    check_name(*call.stream)
    entry, uid = rules.state[STREAMS].stream(*call.stream), call.query.get("uid")
    if uid is not None and uid != entry.record.uid:
        raise OtherStream(f"the uid of {entry.qualified} is {entry.record.uid}, not {uid}; nothing was deleted")
    return rules.write(lambda: None, STREAMS.removed(entry.record))


def lookup(state: CatalogState, namespace: str, name: str, expected: ExpectedStream) -> StreamEntry:
    """The stream, if it is as the caller expects; raises `StreamNotFound`, `SchemaMismatch` (S28)."""
    check_name(namespace, name)
    entry = state[STREAMS].stream(namespace, name)
    problems = list(_mismatches(entry, expected))
    if problems:
        fields = ", ".join(problem.path for problem in problems)
        raise SchemaMismatch(f"the stream {entry.qualified} is declared otherwise: {fields}", problems)
    return entry


def _mismatches(entry: StreamEntry, expected: ExpectedStream) -> list[Problem]:
    spec = entry.manifest.spec
    pairs = (
        ("time.shape", spec.time.shape, expected.time),
        ("payload.encoding", spec.payload.encoding, expected.encoding),
    )
    problems = [
        Problem(path, f"the stream has {declared}, not {wanted}", "use what the stream declares")
        for path, declared, wanted in pairs
        if wanted is not None and declared != wanted
    ]
    return problems + differences(spec.payload.fields, expected.schema)


def view(state: CatalogState, entry: StreamEntry, now: float, *, with_segments: bool = True) -> dict[str, Any]:
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
        shown["segments"] = segments.views(state, entry, now)
    return shown


def looked_up(state: CatalogState, entry: StreamEntry, now: float) -> dict[str, Any]:
    """The addresses for a stream."""
    head = view(state, entry, now, with_segments=False)
    return {"stream": head, "segments": segments.views(state, entry, now)}


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


def _held_back(held: HeldBack) -> dict[str, Any]:
    return {"segment": held.segment, **segments.holder(held), "words": held.words}


def _items(state: CatalogState, asked: PageRequest, _uid: str | None, now: float) -> Items:
    """Streams by name."""
    known = state[STREAMS]
    for key in filter(asked.wants, after(known.names, asked.after)):
        yield key, partial(view, state, known.named(key), now)


NOUN = Noun(
    STREAMS,
    routes=(
        ByHand(streams.APPLY),  # its body is a manifest, and its status says whether the stream is new
        Listing(streams.LIST, _items, more=lambda state: {"reserved": [reserved(state)]}),
        ByHand(streams.GET),  # 304 to a client that has the answer
        Write(streams.DELETE, delete),
        ByHand(streams.GET_RESERVED),  # shows a path to clients of the same machine
        ByHand(streams.APPLY_RESERVED),  # always refused, and before the body is read
        ByHand(streams.DELETE_RESERVED),
        ByHand(streams.LOOKUP),  # waits
    ),
    errors={ImmutableField: 409, ReservedName: 409, OtherStream: 409},
    gauge="Declared streams",
)
