"""The rules of the catalog: what each request changes, given the state.

It is pure: every method reads the state, raises a typed error or returns a `Decision`, and changes nothing. The caller
first writes the decision's records to disk and then lets the state take them over, so memory is never ahead of what
survives a crash.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from epochal.catalog_api.answers import Registration, Renewal, SegmentGrant
from epochal.catalog_api.blockers import HeldBack
from epochal.catalog_api.requests import Finishing, Register, SegmentReport
from epochal.errors import (
    ManifestError,
    Problem,
    SchemaMismatch,
    StreamGone,
    Superseded,
    TimeShapeError,
)
from epochal.protocol.frontier import Antichain
from epochal.protocol.segments import key_ranges
from epochal.protocol.times import Time, TimeShape, from_json, less_equal, less_than, to_json
from epochal.resources.feasible import check_feasible
from epochal.resources.manifest import StreamManifest, check_new, immutable_changes
from epochal.resources.schemas import Schema, differences
from epochal.service.errors import InvalidRequest, SegmentNotFound
from epochal_catalog.domain.decisions import Decision, Rules, following
from epochal_catalog.domain.kind import Json
from epochal_catalog.domain.kinds.sessions import SESSIONS
from epochal_catalog.domain.records import (
    CounterRecord,
    HorizonRecorded,
    LeaseRenewed,
    RegistrationRecord,
    RegistrationRemoved,
    Reported,
    SegmentRecord,
    StateChange,
    StreamRecord,
    StreamRemoved,
)
from epochal_catalog.domain.state import StreamEntry, check_name
from epochal_catalog.errors import (
    ImmutableField,
    OtherStream,
    UnknownPublisher,
)

_AT_ONCE = 1000
"""The most withdrawals, and the most notices of leases, in one transaction: other writes get their turn between."""


@dataclass(frozen=True, slots=True)
class Renewing:
    """A publisher that renews its lease, with a report for each of its segments."""

    publisher: str
    token: int
    reports: Mapping[str, SegmentReport]


class RenewalDecision(NamedTuple):
    """What a renewal changes: the owner's segments, which no other publisher changes, and its lease."""

    changed: tuple[SegmentRecord | HorizonRecorded, ...]
    renewed: LeaseRenewed
    answer: Callable[[], Renewal]


@dataclass(frozen=True, slots=True)
class ExpectedStream:
    """What a caller of the lookup expects from the stream; None is not checked (S28)."""

    time: TimeShape | None = None
    encoding: str | None = None
    schema: Schema | None = None


class Registry(Rules):
    """Decides on a `CatalogState`; holds nothing itself.

    The caller gives `uid`, `at` (ISO 8601, UTC) and `floor`, the least number that may be given out now (E12):
    nothing here draws random numbers or reads a clock.
    """

    # --- streams ------------------------------------------------------------------------------------------------------

    def apply(self, manifest: StreamManifest, uid: str, at: str) -> Decision[tuple[StreamEntry, bool]]:
        """Declare a stream, or change its declaration; the answer says whether the stream is new.

        A new stream gets `uid`. The same manifest again changes nothing. Raises `ReservedName`, `ImmutableField`, and
        `ManifestError` for one that is too large, or that can never run.
        """
        namespace, name = manifest.namespace, manifest.name
        check_name(namespace, name)

        def answer(created: bool) -> Callable[[], tuple[StreamEntry, bool]]:
            return lambda: (self.state.stream(namespace, name), created)

        entry, document = self.state.find(namespace, name), manifest.to_document()
        if entry is None:
            check_new(document)
            check_feasible(manifest)
            self._check_ports(manifest)
            segments = (
                SegmentRecord(uid, str(index), span.lo, span.hi)
                for index, span in enumerate(key_ranges(manifest.spec.segments))
            )
            record = StreamRecord(uid, namespace, name, 1, document, at)
            return self.write(answer(True), record, *segments)
        problems = immutable_changes(entry.manifest, manifest)
        if problems:
            raise ImmutableField(f"the stream {manifest.qualified} exists, and these fields cannot change", problems)
        if document == entry.record.manifest:
            return Decision((), answer(False))
        check_new(document)
        check_feasible(manifest)
        self._check_ports(manifest)
        record = replace(entry.record, manifest=document, generation=entry.record.generation + 1)
        return self.write(answer(False), record)

    def _check_ports(self, manifest: StreamManifest) -> None:
        """Raises `ManifestError` for a port of local mode's machine that another stream names."""
        ports = manifest.local_ports
        if not ports:
            return
        others = (entry.manifest for entry in self.state.streams() if entry.qualified != manifest.qualified)
        taken = {port: (path, other.qualified) for other in others for path, port in other.local_ports.items()}
        problems = [
            Problem(path, f"is {port}, as {taken[port][0]} of {taken[port][1]} is", "choose another port")
            for path, port in ports.items()
            if port in taken
        ]
        if problems:
            raise ManifestError(f"the stream {manifest.qualified} and another one cannot have the same port", problems)

    def delete(self, namespace: str, name: str, uid: str | None = None) -> Decision[None]:
        """Delete a stream with its sessions; its publishers get `StreamGone` when they renew. Raises `StreamNotFound`.

        `uid`: delete only this stream; raises `OtherStream` when another stream has the name now.
        """
        check_name(namespace, name)
        entry = self.state.stream(namespace, name)
        if uid is not None and uid != entry.record.uid:
            raise OtherStream(f"the uid of {entry.qualified} is {entry.record.uid}, not {uid}; nothing was deleted")
        return self.write(lambda: None, StreamRemoved(entry.record.uid))

    # --- publishers ---------------------------------------------------------------------------------------------------

    def register(self, asked: Register, at: str) -> Decision[Registration]:
        """Give segments to a publisher with the next fencing token; publishers that had them are superseded (E12).

        The answer hands over what the last incarnation reported (E11). When an `instance` repeats its request, because
        it did not get the answer, it gets the same answer: no publisher supersedes itself. Raises `StreamNotFound`,
        `StreamGone` when `uid` is of an older stream of that name, `SegmentNotFound`.
        """
        namespace, _, name = asked.stream.rpartition("/")
        entry = self.state.same_stream(namespace, name, asked.uid)
        before = self.state.registrations.get(asked.publisher)
        if before is not None and self._is_repeated(asked, before):
            return Decision((LeaseRenewed(before.token),), self._granted(before, entry))
        token = following(self.state.last_token, self.floor)
        taken = [
            replace(
                segment,
                incarnation=following(max(segment.incarnation, asked.incarnations.get(segment.id, 0)), self.floor),
                token=token,
                finishing_number=-1,
                record_number=-1,
            )
            for segment in (self._segment(entry, name) for name in dict.fromkeys(asked.segments))
        ]
        registration = RegistrationRecord(
            publisher=asked.publisher,
            token=token,
            instance=asked.instance,
            stream=entry.qualified,
            uid=entry.record.uid,
            segments={segment.id: segment.incarnation for segment in taken},
            addresses=asked.addresses.to_json(),
            since=at,
        )
        return self.write(self._granted(registration, entry), CounterRecord("token", token), *taken, registration)

    def renew(self, publisher: str, token: int, reports: Mapping[str, SegmentReport]) -> Decision[Renewal]:
        """Renew a lease, with the publisher's reports about its segments; brings a lapsed address back.

        Writes to disk only what changed. Raises `UnknownPublisher`, `StreamGone`, `Superseded`, `SegmentNotFound`, and
        `InvalidRequest` for times of the wrong shape and for a horizon that is missing or shrinks.
        """
        changed, renewed, answer = self.renewal(Renewing(publisher, token, reports))
        return self.write(answer, *changed, renewed)

    def renew_together(self, renewals: Sequence[RenewalDecision]) -> Decision[list[Renewal]]:
        """Several renewals of different tokens in one transaction, each decided on the state as it is now."""
        changed = [change for renewal in renewals for change in renewal.changed]
        leases = [renewal.renewed for renewal in renewals]

        def answer() -> list[Renewal]:
            return [renewal.answer() for renewal in renewals]

        return self.write(answer, *changed, *leases)

    def renewal(self, asked: Renewing) -> RenewalDecision:
        """What one renewal changes. Raises what `renew` raises."""
        publisher, token, reports = asked.publisher, asked.token, asked.reports
        registration, entry = self._owner(publisher, token)
        shape = entry.manifest.spec.time.shape
        changed: list[SegmentRecord | HorizonRecorded] = []
        reported: dict[str, Reported] = {}
        for name, report in reports.items():
            segment = self._segment(entry, name)
            self._check_incarnation(registration, segment, report.incarnation)
            updated = _reported(segment, report, shape)
            if updated != segment:
                unseen = (updated.lower, updated.writers) == (segment.lower, segment.writers)
                changed.append(HorizonRecorded(updated) if unseen else updated)
            times = _times([holder.time for holder in report.holders], shape, f"segments.{name}.holders")
            holders = [
                HeldBack(name, time, holder.kind, holder.writer, holder.seconds, holder.silent)
                for holder, time in zip(report.holders, times, strict=True)
            ]
            below = tuple(_shaped(report.below, shape, f"segments.{name}.below"))
            if report.counters or holders or below or report.channels:
                reported[name] = Reported(dict(report.counters), tuple(holders), below, tuple(report.channels))
        renewed = LeaseRenewed(token, reported)

        def answer() -> Renewal:
            recorded = {name: entry.segments[name].record_number for name in reports}
            released = self._released(entry, registration, reports.values())
            return Renewal(self.state.leases.ttl, entry.complete, recorded, released)

        return RenewalDecision(tuple(changed), renewed, answer)

    def deregister(self, publisher: str, token: int) -> Decision[None]:
        """Withdraw a publisher's addresses for good. Raises `UnknownPublisher`, `Superseded` on another token."""
        registration = self._registration(publisher, token)
        return self.write(lambda: None, RegistrationRemoved(publisher, registration.token))

    def finish(self, namespace: str, name: str, segment_id: str, mark: Finishing, at: str) -> Decision[dict[str, Json]]:
        """Record a finishing mark; when every open segment has one, record completion too, for ever (E7).

        A mark changes nothing when its number is not above the last one of this incarnation, or when the stream is
        complete. Raises `StreamNotFound`, `SegmentNotFound`, `UnknownPublisher`, `StreamGone`, `Superseded`.
        """
        entry = self.state.stream(namespace, name)
        segment = self._segment(entry, segment_id)
        registration, owned = self._owner(mark.publisher, mark.token)
        if owned is not entry:
            raise Superseded(f"publisher {mark.publisher} is registered for {owned.qualified}, not {entry.qualified}")
        self._check_incarnation(registration, segment, mark.incarnation)

        def answer() -> dict[str, Json]:
            return {"complete": entry.complete}

        if entry.complete or mark.number <= segment.finishing_number:
            return Decision((), answer)
        changes: list[StateChange] = [replace(segment, finishing=mark.finishing, finishing_number=mark.number)]
        others = (other for other in entry.open_segments() if other.id != segment.id)
        if mark.finishing and all(other.finishing for other in others):
            changes.append(replace(entry.record, completed=at))
        return self.write(answer, *changes)

    def tidy(self, seconds: float, now: float) -> Decision[None] | None:
        """What changes because time has passed; None: nothing now.

        Subscriptions (S30) and relays whose lease has lapsed are withdrawn. Registrations that are not current and
        whose lease lapsed `seconds` ago are dropped; until then their publishers get an error that says why they must
        stop. Watchers are notified of leases that lapsed or came back.
        """
        changes: list[StateChange] = list(self.state.noticed[:_AT_ONCE])
        for kind in self.state.kinds.values():
            changes += [kind.removed(record) for record in islice(self.state[kind].lapsed(), _AT_ONCE)]
        changes += [
            RegistrationRemoved(record.publisher, record.token)
            for record in self.state.registrations.values()
            if not self.state.current(record) and self.state.leases.lapsed_for(record.token, seconds, now)
        ]
        return self.write(lambda: None, *changes) if changes else None

    # --- reads --------------------------------------------------------------------------------------------------------

    def lookup(self, namespace: str, name: str, expected: ExpectedStream) -> StreamEntry:
        """The stream, if it is as the caller expects; raises `StreamNotFound`, `SchemaMismatch` (S28)."""
        check_name(namespace, name)
        entry = self.state.stream(namespace, name)
        problems = list(_mismatches(entry, expected))
        if problems:
            fields = ", ".join(problem.path for problem in problems)
            raise SchemaMismatch(f"the stream {entry.qualified} is declared otherwise: {fields}", problems)
        return entry

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _is_repeated(self, asked: Register, before: RegistrationRecord) -> bool:
        """Whether the current registration was made by this same request: its answer may have been lost."""
        return (
            before.instance == asked.instance
            and before.uid == asked.uid
            and before.segments.keys() == set(asked.segments)
            and before.addresses == asked.addresses.to_json()
            and self.state.current(before)
        )

    def _released(
        self, entry: StreamEntry, registration: RegistrationRecord, reports: Iterable[SegmentReport]
    ) -> dict[str, int]:
        """The released writers that a publisher may still hold time for, by its last reports (E46).

        Each answer repeats them until the reports no longer name them: an earlier answer may have been lost.
        """
        released = self.state[SESSIONS].released(entry.record.uid)
        if not released:
            return {}
        counted: set[str | None] = {writer for name in registration.segments for writer in entry.segments[name].writers}
        counted |= {holder.writer for report in reports for holder in report.holders}
        return {writer: session for writer, session in released.items() if writer in counted}

    def _granted(self, registration: RegistrationRecord, entry: StreamEntry) -> Callable[[], Registration]:
        def answer() -> Registration:
            segments = tuple([_grant(entry.segments[name], entry.complete) for name in registration.segments])
            newest = self.state[SESSIONS].of(entry.record.uid)
            sessions = {session.writer: session.number for session in newest if not session.first}
            return Registration(registration.token, self.state.leases.ttl, segments, sessions)

        return answer

    def _segment(self, entry: StreamEntry, segment: str) -> SegmentRecord:
        found = entry.segments.get(segment)
        if found is None:
            raise SegmentNotFound(
                f"the stream {entry.qualified} has no segment {segment!r}; it has {', '.join(entry.segments)}"
            )
        return found

    def _registration(self, publisher: str, token: int) -> RegistrationRecord:
        registration = self.state.registrations.get(publisher)
        if registration is None:
            raise UnknownPublisher(f"no publisher {publisher!r} is registered; register it (POST /v1/publishers)")
        if token > registration.token:  # given out after the copy that this catalog runs on was made
            raise UnknownPublisher(
                f"token {token} of publisher {publisher} is above the newest one known here, {registration.token}:"
                " this catalog is an older copy; register again"
            )
        if token != registration.token:
            raise Superseded(
                f"publisher {publisher} has registered again with token {registration.token}; {token} is old"
            )
        return registration

    def _owner(self, publisher: str, token: int) -> tuple[RegistrationRecord, StreamEntry]:
        registration = self._registration(publisher, token)
        entry = self.state.by_uid(registration.uid)
        if entry is None:
            raise StreamGone(f"the stream {registration.stream} that publisher {publisher} serves was deleted; stop it")
        if not self.state.current(registration):
            raise Superseded(f"another publisher has registered for segments of {publisher}; it must stop")
        return registration, entry

    def _check_incarnation(self, registration: RegistrationRecord, segment: SegmentRecord, incarnation: int) -> None:
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


def _shaped(times: Sequence[Json], shape: TimeShape, path: str) -> list[Json]:
    return list(map(to_json, _times(times, shape, path)))


def _times(times: Sequence[Json], shape: TimeShape, path: str) -> list[Time]:
    try:
        return list(map(shape.from_json, times))
    except TimeShapeError as error:
        problem = Problem(path, str(error), f"the stream's time shape is {shape}")
        raise InvalidRequest(f"{path} has a time of another shape: {error}", [problem]) from None


def _reported(segment: SegmentRecord, report: SegmentReport, shape: TimeShape) -> SegmentRecord:
    lower, writers = segment.lower, segment.writers
    if report.lower is not None:
        lower = _shaped(report.lower, shape, f"segments.{segment.id}.lower")
    if report.writers is not None:
        writers = tuple(sorted(set(report.writers)))
    if report.number is not None:
        horizon = _horizon(segment, report, shape)
        if report.number <= segment.record_number:
            return segment  # late or repeated: a record with this number or a higher one was taken before
        if not report.final:
            _check_growth(segment, lower, horizon)
        marks, number = tuple(report.marks), report.number
        return replace(segment, lower=lower, writers=writers, horizon=horizon, marks=marks, record_number=number)
    if report.lower is None and report.writers is None:
        return segment  # a report without values leaves the stored ones as they are
    return replace(segment, lower=lower, writers=writers, horizon=None)


def _horizon(segment: SegmentRecord, report: SegmentReport, shape: TimeShape) -> list[Json]:
    """The maximal times of the reported horizon."""
    path = f"segments.{segment.id}.horizon"
    if report.horizon is None:
        problem = Problem(path, "is missing", "a record (`number`) has a horizon; [] when no time may become active")
        raise InvalidRequest(f"the report of segment {segment.id} is a record without a horizon", [problem])
    times = list(dict.fromkeys(from_json(time) for time in _shaped(report.horizon, shape, path)))
    return [to_json(time) for time in times if not any(less_than(time, other) for other in times)]


def _check_growth(segment: SegmentRecord, lower: list[Json] | None, horizon: list[Json]) -> None:
    """Only times that the frontier has passed may leave a horizon: else an active time would not be aborted."""
    frontier = None if lower is None else Antichain(map(from_json, lower))
    above = [from_json(time) for time in horizon]
    for stored in map(from_json, segment.horizon or ()):
        reached = frontier is None or frontier.less_equal(stored)
        if reached and not any(less_equal(stored, time) for time in above):
            problem = Problem(
                f"segments.{segment.id}.horizon",
                f"no longer covers {to_json(stored)}, which the frontier still reaches",
                "a horizon only grows, but for what the frontier has passed; `final` is for a publisher that stops",
            )
            reason = f"the report of segment {segment.id} takes {to_json(stored)} of the stored horizon back"
            raise InvalidRequest(reason, [problem])


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
