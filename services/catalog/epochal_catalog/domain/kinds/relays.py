"""Relays: each is listed while it renews, so that readers of its stream find it.

A relay owns nothing: it has no segments and no fencing token, and nothing that is published depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from epochal.catalog_api import relays
from epochal.catalog_api.answers import RelayInfo
from epochal.catalog_api.relays import RelayRenewed
from epochal.catalog_api.requests import RegisterRelay, RelayReport
from epochal.errors import StreamError
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kind import Kind, Record, Renewed, Rows
from epochal_catalog.domain.leased_entries import LeasedEntries, entries, with_stream
from epochal_catalog.domain.noun import Call, Listing, Noun, Write, entry_items
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS


@dataclass(frozen=True, slots=True)
class RelayRecord(Record):
    """A relay of a stream; `name` is shared by its replicas, `id` is its own.

    `segments`: the addresses of single segments, where they differ from `addresses`. `path`: the ids of the relays
    between it and the publishers.
    """

    id: str
    uid: str
    name: str
    addresses: dict[str, str]
    segments: dict[str, dict[str, str]]
    upstream: str
    capacity: int
    state: str
    path: list[str]
    since: str


RELAYS: Kind[RelayRecord, LeasedEntries[RelayRecord, RelayReport]] = Kind(
    "relay",
    Rows(RelayRecord, "relays", key=("id",), of_stream=True),  # no fence: a relay owns nothing
    memory=entries("relays", ttl="relay_ttl", limit="max_relays"),
    event=with_stream,
)


class UnknownRelay(StreamError):
    """No relay is listed under that id; it should register again."""

    code = "unknown_relay"


def register(rules: Rules, call: Call[RegisterRelay]) -> Decision[RelayRenewed]:
    """List a relay, in place of one of the same id.

    Raises `StreamNotFound`, `StreamGone` when the `uid` is of an older stream, `Overloaded` above the limit.
    """
    state, asked = rules.state, call.body
    namespace, _, name = asked.stream.rpartition("/")
    state[STREAMS].same_stream(namespace, name, asked.uid)
    if state[RELAYS].get(asked.id) is None:
        state[RELAYS].check_room()
    record = RelayRecord(
        id=asked.id,
        uid=asked.uid,
        name=asked.name,
        addresses=asked.addresses.to_json(),
        segments={segment: addresses.to_json() for segment, addresses in asked.segments.items()},
        upstream=asked.upstream,
        capacity=asked.capacity,
        state=asked.report.state,
        path=list(asked.report.path),
        since=call.at,
    )
    return rules.write(_ttl(state), record, Renewed(RELAYS, asked.id, asked.report))


def renew(rules: Rules, call: Call[RelayReport]) -> Decision[RelayRenewed]:
    """Renew a relay's entry; only a change of what watchers see is stored. Raises `UnknownRelay`."""
    record, report = _live(rules.state, call.path["relay"]), call.body
    renewed = Renewed(RELAYS, record.id, report)
    if (record.state, record.path) == (report.state, report.path):
        return Decision((renewed,), _ttl(rules.state))
    return rules.write(_ttl(rules.state), replace(record, state=report.state, path=list(report.path)), renewed)


def deregister(rules: Rules, call: Call[None]) -> Decision[None]:
    """Take a relay off the list. Raises `UnknownRelay`."""
    return rules.write(lambda: None, RELAYS.removed(_live(rules.state, call.path["relay"])))


def _ttl(state: CatalogState) -> Callable[[], RelayRenewed]:
    return lambda: RelayRenewed(state[RELAYS].leases.ttl)


def _live(state: CatalogState, key: str) -> RelayRecord:
    record = state[RELAYS].live(key)
    if record is None:
        raise UnknownRelay(
            f"there is no relay {key!r}: it left, its lease lapsed, or its stream was deleted; register it again"
            " (POST /v1/relays)"
        )
    return record


def view(state: CatalogState, record: RelayRecord) -> RelayInfo:
    """A relay, with its last report; after a restart of the catalog its load is not known, and shown as 0."""
    report = state[RELAYS].report(record.id) or RelayReport()
    return RelayInfo(
        record.id,
        record.name,
        state.name_of(record.uid),
        record.uid,
        record.addresses,
        record.segments,
        record.upstream,
        record.capacity,
        record.state,
        tuple(record.path),
        report.load,
        report.lag,
        report.filter,
        record.since,
        verified=state[RELAYS].verified(record.id),
    )


_items = entry_items(RELAYS, view)

NOUN = Noun(
    RELAYS,
    routes=(
        Write(relays.REGISTER, register),
        Write(relays.RENEW, renew),
        Write(relays.DEREGISTER, deregister),
        Listing(relays.LIST, _items),
        Listing(relays.LIST_OF_STREAM, _items),
    ),
    errors={UnknownRelay: 404},
    gauge="Relays",
)
