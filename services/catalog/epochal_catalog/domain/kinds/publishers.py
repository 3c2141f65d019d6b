"""Publishers: who serves which segment, by lease, fencing token and incarnation (E12 fencing).

A publisher's request carries two changes. `renew` renews its lease and takes the records of its segments: they must
survive, because the next publisher may start from them (E11 horizon), so the request waits until they are on disk.
`report` takes what may be lost, such as counters and who holds time back: it stays in memory and never waits for the
disk.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from epochal.catalog_api import publishers
from epochal.catalog_api.answers import Registration, Renewal, SegmentGrant
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.publishers import Completion
from epochal.catalog_api.requests import Finishing, Register, SegmentReport
from epochal.errors import StreamError, StreamGone, Superseded
from epochal.protocol.times import TimeShape
from epochal.service.errors import SegmentNotFound
from epochal_catalog.domain.decisions import Decision, Rules, following
from epochal_catalog.domain.kind import Renewed
from epochal_catalog.domain.kinds.sessions import SESSIONS
from epochal_catalog.domain.noun import ByHand, Call, Items, Listing, Noun, Write
from epochal_catalog.domain.pages import PageRequest, after
from epochal_catalog.domain.records import CounterRecord, StateChange
from epochal_catalog.domain.registrations import PUBLISHERS, RegistrationRecord, Reported, SegmentsReported
from epochal_catalog.domain.segment_records import read_times, record_of, shaped
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS, HorizonRecorded, SegmentRecord, StreamEntry


@dataclass(frozen=True, slots=True)
class Renewing:
    """A publisher's request: it renews its lease, with a report for each of its segments."""

    publisher: str
    token: int
    reports: Mapping[str, SegmentReport]


class UnknownPublisher(StreamError):
    """No publisher is registered under that id; it should register."""

    code = "unknown_publisher"


def register(rules: Rules, call: Call[Register]) -> Decision[Registration]:
    """Give segments to a publisher with the next fencing token; publishers that had them are superseded (E12 fencing).

    The answer hands over what the last incarnation reported (E11 horizon). When an `instance` repeats its request,
    because it did not get the answer, it gets the same answer: no publisher supersedes itself. Raises `StreamNotFound`,
    `StreamGone` when `uid` is of an older stream of that name, `SegmentNotFound`.
    """
    asked = call.body
    namespace, _, name = asked.stream.rpartition("/")
    entry = rules.state[STREAMS].same_stream(namespace, name, asked.uid)
    before = rules.state[PUBLISHERS].get(asked.publisher)
    if before is not None and _is_repeated(rules.state, asked, before):
        return Decision((Renewed(PUBLISHERS, before.token),), _granted(rules.state, before, entry))
    token = following(rules.state.last_token, rules.floor)
    taken = [
        replace(
            segment,
            incarnation=following(max(segment.incarnation, asked.incarnations.get(segment.id, 0)), rules.floor),
            token=token,
            finishing_number=-1,
            record_number=-1,
        )
        for segment in (_segment(entry, name) for name in dict.fromkeys(asked.segments))
    ]
    registration = RegistrationRecord(
        publisher=asked.publisher,
        token=token,
        instance=asked.instance,
        stream=entry.qualified,
        uid=entry.record.uid,
        segments={segment.id: segment.incarnation for segment in taken},
        addresses=asked.addresses.to_json(),
        since=call.at,
    )
    return rules.write(_granted(rules.state, registration, entry), CounterRecord("token", token), *taken, registration)


def renew(rules: Rules, asked: Renewing) -> Decision[Renewal]:
    """Renew a lease and take the records of the publisher's segments; brings a lapsed address back.

    Writes to disk only the records that changed. Raises `UnknownPublisher`, `StreamGone`, `Superseded`,
    `SegmentNotFound`, and `InvalidRequest` for times of the wrong shape and for a horizon that is missing or shrinks.
    """
    state = rules.state
    registration, entry = _owner(state, asked.publisher, asked.token)
    changed: list[SegmentRecord | HorizonRecorded] = []
    for name, reported in asked.reports.items():
        segment = _segment(entry, name)
        _check_incarnation(registration, segment, reported.incarnation)
        changed += _renew_record(segment, reported, entry.shape)

    def answer() -> Renewal:
        recorded = {name: entry.segments[name].record_number for name in asked.reports}
        released = _released(state, entry, registration, asked.reports.values())
        return Renewal(state.leases.ttl, entry.complete, recorded, released)

    return rules.write(answer, *changed, Renewed(PUBLISHERS, asked.token))


def report(state: CatalogState, asked: Renewing) -> SegmentsReported:
    """What a publisher's request says of its segments that may be lost; it counts even when no record can be stored.

    Raises `UnknownPublisher`, `StreamGone`, `Superseded`, `SegmentNotFound`, and `InvalidRequest` for times of the
    wrong shape.
    """
    registration, entry = _owner(state, asked.publisher, asked.token)
    taken: dict[str, Reported] = {}
    for name, reported in asked.reports.items():
        _check_incarnation(registration, _segment(entry, name), reported.incarnation)
        taken |= _report(name, reported, entry.shape)
    return SegmentsReported(asked.token, taken)


def _renew_record(
    segment: SegmentRecord, report: SegmentReport, shape: TimeShape
) -> Iterable[SegmentRecord | HorizonRecorded]:
    """What must survive of a report: the record of its segment, if it changes."""
    updated = record_of(segment, report, shape)
    if updated != segment:
        unseen = (updated.lower, updated.writers) == (segment.lower, segment.writers)
        yield HorizonRecorded(updated) if unseen else updated


def _report(name: str, report: SegmentReport, shape: TimeShape) -> dict[str, Reported]:
    """What may be lost of a segment's report; empty when there is nothing of it, and the one before stays."""
    times = read_times([holder.time for holder in report.holders], shape, f"segments.{name}.holders")
    holders = [
        HeldBack(name, time, holder.kind, holder.writer, holder.seconds, holder.silent)
        for holder, time in zip(report.holders, times, strict=True)
    ]
    below = tuple(shaped(report.below, shape, f"segments.{name}.below"))
    if not (report.counters or holders or below or report.channels):
        return {}
    return {name: Reported(dict(report.counters), tuple(holders), below, tuple(report.channels))}


def deregister(rules: Rules, call: Call[None]) -> Decision[None]:
    """Withdraw a publisher's addresses for good. Raises `UnknownPublisher`, `Superseded` on another token."""
    registration = _registration(rules.state, call.path["publisher"], call.query["token"])
    return rules.write(lambda: None, PUBLISHERS.removed(registration))


def finish(rules: Rules, call: Call[Finishing]) -> Decision[Completion]:
    """Record a finishing mark; when every open segment has one, record completion too, for ever (E7 finish).

    A mark changes nothing when its number is not above the last one of this incarnation, or when the stream is
    complete. Raises `StreamNotFound`, `SegmentNotFound`, `UnknownPublisher`, `StreamGone`, `Superseded`.
    """
    mark, entry = call.body, rules.state[STREAMS].stream(*call.stream)
    segment = _segment(entry, call.path["segment"])
    registration, owned = _owner(rules.state, mark.publisher, mark.token)
    if owned is not entry:
        raise Superseded(f"publisher {mark.publisher} is registered for {owned.qualified}, not {entry.qualified}")
    _check_incarnation(registration, segment, mark.incarnation)

    def answer() -> Completion:
        return Completion(entry.complete)

    if entry.complete or mark.number <= segment.finishing_number:
        return Decision((), answer)
    changes: list[StateChange] = [replace(segment, finishing=mark.finishing, finishing_number=mark.number)]
    others = (other for other in entry.open_segments() if other.id != segment.id)
    if mark.finishing and all(other.finishing for other in others):
        changes.append(replace(entry.record, completed=call.at))
    return rules.write(answer, *changes)


def _is_repeated(state: CatalogState, asked: Register, before: RegistrationRecord) -> bool:
    """Whether the current registration was made by this same request: its answer may have been lost."""
    return (
        before.instance == asked.instance
        and before.uid == asked.uid
        and before.segments.keys() == set(asked.segments)
        and before.addresses == asked.addresses.to_json()
        and state.current(before)
    )


def _released(
    state: CatalogState, entry: StreamEntry, registration: RegistrationRecord, reports: Iterable[SegmentReport]
) -> dict[str, int]:
    """The released writers that a publisher may still hold time for, by its last reports (E46 hold).

    Each answer repeats them until the reports no longer name them: an earlier answer may have been lost.
    """
    released = state[SESSIONS].released(entry.record.uid)
    if not released:
        return {}
    counted: set[str | None] = {writer for name in registration.segments for writer in entry.segments[name].writers}
    counted |= {holder.writer for report in reports for holder in report.holders}
    return {writer: session for writer, session in released.items() if writer in counted}


def _granted(state: CatalogState, registration: RegistrationRecord, entry: StreamEntry) -> Callable[[], Registration]:
    def answer() -> Registration:
        segments = tuple([_grant(entry.segments[name], entry.complete) for name in registration.segments])
        newest = state[SESSIONS].of(entry.record.uid)
        sessions = {session.writer: session.number for session in newest if not session.first}
        return Registration(registration.token, state.leases.ttl, segments, sessions)

    return answer


def _segment(entry: StreamEntry, segment: str) -> SegmentRecord:
    found = entry.segment(segment)
    if found is None:
        raise SegmentNotFound(
            f"the stream {entry.qualified} has no segment {segment!r}; it has {', '.join(entry.segments)}"
        )
    return found


def _registration(state: CatalogState, publisher: str, token: int) -> RegistrationRecord:
    registration = state[PUBLISHERS].get(publisher)
    if registration is None:
        raise UnknownPublisher(f"no publisher {publisher!r} is registered; register it (POST /v1/publishers)")
    if token > registration.token:  # given out after the copy that this catalog runs on was made
        raise UnknownPublisher(
            f"token {token} of publisher {publisher} is above the newest one known here, {registration.token}:"
            " this catalog is an older copy; register again"
        )
    if token != registration.token:
        raise Superseded(f"publisher {publisher} has registered again with token {registration.token}; {token} is old")
    return registration


def _owner(state: CatalogState, publisher: str, token: int) -> tuple[RegistrationRecord, StreamEntry]:
    registration = _registration(state, publisher, token)
    entry = state[STREAMS].by_uid(registration.uid)
    if entry is None:
        raise StreamGone(f"the stream {registration.stream} that publisher {publisher} serves was deleted; stop it")
    if not entry.owned(registration.segments, token):
        raise Superseded(f"another publisher has registered for segments of {publisher}; it must stop")
    return registration, entry


def _check_incarnation(registration: RegistrationRecord, segment: SegmentRecord, incarnation: int) -> None:
    if registration.segments.get(segment.id) != incarnation:
        raise Superseded(
            f"publisher {registration.publisher} does not hold incarnation {incarnation} of segment {segment.id};"
            f" the newest is {segment.incarnation}"
        )


def _grant(segment: SegmentRecord, complete: bool) -> SegmentGrant:
    return SegmentGrant(
        segment.id,
        segment.incarnation,
        segment.lo,
        segment.hi,
        lower=None if segment.lower is None else tuple(segment.lower),
        horizon=None if segment.horizon is None else tuple(segment.horizon),
        marks=segment.marks,
        writers=segment.writers,
        finishing=segment.finishing,
        complete=complete,
    )


def as_owner(state: CatalogState, record: RegistrationRecord) -> dict[str, Any]:
    """A publisher, as the segments that it serves show it."""
    lease = state.leases.get(record.token)
    return {
        "id": record.publisher,
        "token": record.token,
        "verified": lease is not None and lease.verified,
        "addresses": record.addresses,
        "since": record.since,
    }


def view(state: CatalogState, record: RegistrationRecord) -> dict[str, Any]:
    """A registration, and whether it is live or superseded."""
    return {
        **as_owner(state, record),
        "instance": record.instance,
        "stream": record.stream,
        "uid": record.uid,
        "segments": record.segments,
        "live": state.leases.live(record.token),
        "superseded": not state.current(record),
    }


def _items(state: CatalogState, asked: PageRequest, _uid: str | None, _now: float) -> Items:
    """All registrations, by id."""
    known = state[PUBLISHERS]
    for key in after(known.keys, asked.after):
        record = known.get(key)
        if record is not None and asked.wants(record.stream):
            yield key, partial(view, state, record)


NOUN = Noun(
    PUBLISHERS,
    routes=(
        Write(publishers.FINISH, finish),
        Write(publishers.REGISTER, register),
        ByHand(publishers.RENEW),  # renewals that wait share a transaction, and each is answered by itself
        ByHand(publishers.RENEW_TOGETHER),
        Write(publishers.DEREGISTER, deregister),
        Listing(publishers.LIST, _items),
    ),
    errors={UnknownPublisher: 404},
    gauge="Registrations",
)
