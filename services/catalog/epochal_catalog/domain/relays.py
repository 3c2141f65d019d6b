"""The rules of relays: each is listed while it renews, so that readers of its stream find it.

Separate from the rules of publishers because a relay owns nothing: it has no segments, no fencing token, and nothing
that is published depends on it. They are pure: each function reads the state and returns a `Decision`.
"""

from collections.abc import Callable
from dataclasses import replace

from epochal.catalog_api.requests import RegisterRelay, RelayReport
from epochal.errors import StreamGone
from epochal.service.errors import Overloaded
from epochal_catalog.domain.decisions import Decision
from epochal_catalog.domain.records import Json, RelayRecord, RelayRemoved, RelayRenewed
from epochal_catalog.domain.registry import Registry, check_name
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.errors import UnknownRelay


def register(registry: Registry, asked: RegisterRelay, at: str, most: int) -> Decision[dict[str, Json]]:
    """List a relay, in place of one of the same id.

    Raises `StreamNotFound`, `StreamGone` when `asked.uid` is of an older stream, `Overloaded` above `most`.
    """
    state = registry.state
    namespace, _, name = asked.stream.rpartition("/")
    check_name(namespace, name)
    entry = state.stream(namespace, name)
    if entry.record.uid != asked.uid:
        raise StreamGone(f"the stream {entry.qualified} was created again; its uid is now {entry.record.uid}")
    if state.relays.get(asked.id) is None and len(state.relays) >= most:
        raise Overloaded(f"there are {most} relays already (EPOCHAL_CATALOG_MAX_RELAYS); try later")
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
        since=at,
    )
    return registry.write(_ttl(state), record, _renewed(asked.id, asked.report))


def renew(registry: Registry, key: str, report: RelayReport) -> Decision[dict[str, Json]]:
    """Renew a relay's entry; only a change of what watchers see is stored. Raises `UnknownRelay`."""
    record = _live(registry.state, key)
    renewed = _renewed(key, report)
    if (record.state, record.path) == (report.state, report.path):
        return Decision((renewed,), _ttl(registry.state))
    return registry.write(_ttl(registry.state), replace(record, state=report.state, path=list(report.path)), renewed)


def deregister(registry: Registry, key: str) -> Decision[None]:
    """Take a relay off the list. Raises `UnknownRelay`."""
    _live(registry.state, key)
    return registry.write(lambda: None, RelayRemoved(key))


def _renewed(key: str, report: RelayReport) -> RelayRenewed:
    return RelayRenewed(key, report.load, report.lag, report.filter)


def _ttl(state: CatalogState) -> Callable[[], dict[str, Json]]:
    return lambda: {"ttl": state.relays.leases.ttl}


def _live(state: CatalogState, key: str) -> RelayRecord:
    record = state.relays.live(key)
    if record is None:
        raise UnknownRelay(
            f"there is no relay {key!r}: it left, its lease lapsed, or its stream was deleted; register it again"
            " (POST /v1/relays)"
        )
    return record
