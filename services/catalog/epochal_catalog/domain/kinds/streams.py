"""The rules of streams: how one is declared, changed and deleted, and what a look-up expects of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from epochal.errors import ManifestError, Problem, SchemaMismatch
from epochal.protocol.segments import key_ranges
from epochal.protocol.times import TimeShape
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import StreamManifest, check_new, immutable_changes
from epochal.resources.schemas import Schema, differences
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, SegmentRecord, StreamEntry, StreamRecord, check_name
from epochal_catalog.errors import ImmutableField, OtherStream


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


def delete(rules: Rules, namespace: str, name: str, uid: str | None = None) -> Decision[None]:
    """Delete a stream with its sessions; its publishers get `StreamGone` when they renew. Raises `StreamNotFound`.

    `uid`: delete only this stream; raises `OtherStream` when another stream has the name now.
    """
    check_name(namespace, name)
    entry = rules.state[STREAMS].stream(namespace, name)
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
