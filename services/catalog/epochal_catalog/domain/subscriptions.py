"""The rules of subscriptions: each counts separately, and lives as long as its lease (S29-S31).

Separate from the rules of streams and publishers because nothing that is published depends on subscriptions. They are
pure too: each function reads the state and returns a `Decision`.
"""

from collections.abc import Callable

from epochal.catalog_api.answers import SubscriptionLease
from epochal.errors import Problem, StreamGone, TimeShapeError
from epochal.protocol.times import to_json
from epochal.service.errors import InvalidRequest, Overloaded, UnknownSubscription
from epochal_catalog.domain.decisions import Decision
from epochal_catalog.domain.kind import Json
from epochal_catalog.domain.records import SubscriptionRecord, SubscriptionRemoved, SubscriptionRenewed
from epochal_catalog.domain.registry import Registry
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.errors import NotOwner


def subscribe(
    registry: Registry, namespace: str, name: str, requested: SubscriptionRecord, most: int
) -> Decision[SubscriptionLease]:
    """Add a subscription, even when the same reader has others already (S31).

    Raises `StreamNotFound`, `StreamGone` when `requested.uid` is of an older stream, `Overloaded` above `most`.
    """
    state = registry.state
    entry = state.stream(namespace, name)
    if entry.record.uid != requested.uid:
        raise StreamGone(f"the stream {entry.qualified} was created again; its uid is now {entry.record.uid}")
    if len(state.subscribers) >= most:
        raise Overloaded(f"there are {most} subscriptions already (EPOCHAL_CATALOG_MAX_SUBSCRIPTIONS); try later")
    answer = SubscriptionLease(requested.id, requested.token, state.subscribers.leases.ttl)
    return registry.write(lambda: answer, requested)


def renew(state: CatalogState, token: int, renewed: SubscriptionRenewed) -> Decision[dict[str, Json]]:
    """Renew a subscription, with its reader's report; nothing of this is stored.

    Raises `UnknownSubscription`, `NotOwner`, `InvalidRequest` for a frontier of another shape.
    """
    record = _owned(state, renewed.id, token)
    entry = state.by_uid(record.uid)
    assert entry is not None, "a stream takes its subscriptions along"
    if renewed.lower is not None:
        shape = entry.manifest.spec.time.shape
        try:
            lower = [to_json(shape.from_json(time)) for time in renewed.lower]
        except TimeShapeError as error:
            problem = Problem("lower", str(error), f"the stream's time shape is {shape}")
            raise InvalidRequest("the reported frontier has a time of another shape", [problem]) from None
        renewed = SubscriptionRenewed(renewed.id, lower, renewed.counters)
    return Decision((renewed,), _ttl(state))


def withdraw(registry: Registry, key: str, token: int) -> Decision[None]:
    """End a subscription; only its owner may (S29). Raises `UnknownSubscription`, `NotOwner`."""
    _owned(registry.state, key, token)
    return registry.write(lambda: None, SubscriptionRemoved(key))


def _ttl(state: CatalogState) -> Callable[[], dict[str, Json]]:
    return lambda: {"ttl": state.subscribers.leases.ttl}


def _owned(state: CatalogState, key: str, token: int) -> SubscriptionRecord:
    record = state.subscribers.get(key)
    if record is None or not state.subscribers.leases.live(key):
        raise UnknownSubscription(
            f"there is no subscription {key!r}: it was withdrawn, its lease lapsed, or its stream was deleted;"
            " subscribe again"
        )
    if record.token != token:
        raise NotOwner(f"the subscription {key} is another's: {token} is not the token that its owner was given")
    return record
