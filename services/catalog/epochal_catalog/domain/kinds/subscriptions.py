"""Subscriptions: each reader of a stream counts separately, and as long as its lease lasts (S31).

Nothing that is published depends on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from epochal.catalog_api import subscriptions
from epochal.catalog_api.answers import SubscriptionInfo, SubscriptionLease
from epochal.catalog_api.requests import RenewSubscription, Subscribe
from epochal.catalog_api.subscriptions import SubscriptionRenewed
from epochal.errors import Problem, StreamError, TimeShapeError
from epochal.protocol.times import to_json
from epochal.service.errors import InvalidRequest, UnknownSubscription
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kind import Event, Fence, Json, Kind, Names, Record, Renewed, Rows
from epochal_catalog.domain.leased_entries import LeasedEntries, entries
from epochal_catalog.domain.noun import Call, Listing, Noun, Write, entry_items
from epochal_catalog.domain.state import CatalogState
from epochal_catalog.domain.stream_entries import STREAMS


@dataclass(frozen=True, slots=True)
class SubscriptionRecord(Record):
    """A reader of a stream, one record for each subscription; a client that knows `token` owns it (S29)."""

    id: str
    token: int
    uid: str
    subscriber: str
    since: str


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """What a reader said with its last renewal: its frontier, None when not known, and its counters."""

    lower: list[Json] | None = None
    counters: Mapping[str, float] = field(default_factory=dict)


def _event(record: SubscriptionRecord, names: Names) -> Event:
    """Never shows the token: only the owner may know it (S29)."""
    return record.id, {
        "id": record.id,
        "stream": names(record.uid),
        "uid": record.uid,
        "subscriber": record.subscriber,
        "since": record.since,
    }


SUBSCRIPTIONS: Kind[SubscriptionRecord, LeasedEntries[SubscriptionRecord, SubscriptionReport]] = Kind(
    "subscription",
    Rows(SubscriptionRecord, "subscriptions", key=("id",), fence=Fence("token"), of_stream=True),
    memory=entries("subscriptions", ttl="subscription_ttl", limit="max_subscriptions"),
    event=_event,
)


class NotOwner(StreamError):
    """Only the owner of a subscription, who has its token, can renew or withdraw it (S29)."""

    code = "not_owner"


def subscribe(rules: Rules, call: Call[Subscribe]) -> Decision[SubscriptionLease]:
    """Add a subscription, even when the same reader has others already (S31).

    Raises `StreamNotFound`, `StreamGone` when the `uid` is of an older stream, `Overloaded` above the limit.
    """
    state, asked = rules.state, call.body
    state[STREAMS].same_stream(*call.stream, asked.uid)
    state[SUBSCRIPTIONS].check_room()
    record = SubscriptionRecord(call.fresh_id, call.fresh_token, asked.uid, asked.subscriber, call.at)
    answer = SubscriptionLease(record.id, record.token, state[SUBSCRIPTIONS].leases.ttl)
    return rules.write(lambda: answer, record)


def renew(rules: Rules, call: Call[RenewSubscription]) -> Decision[SubscriptionRenewed]:
    """Renew a subscription, with its reader's report; nothing of this is stored.

    Raises `UnknownSubscription`, `NotOwner`, `InvalidRequest` for a frontier of another shape.
    """
    state, asked = rules.state, call.body
    record = _owned(state, call.path["subscription"], asked.token)
    entry = state[STREAMS].by_uid(record.uid)
    assert entry is not None, "a stream takes its subscriptions along"
    lower = asked.lower
    if lower is not None:
        try:
            lower = [to_json(entry.shape.from_json(time)) for time in lower]
        except TimeShapeError as error:
            problem = Problem("lower", str(error), f"the stream's time shape is {entry.shape}")
            raise InvalidRequest("the reported frontier has a time of another shape", [problem]) from None
    report = SubscriptionReport(lower, asked.counters)
    return Decision((Renewed(SUBSCRIPTIONS, record.id, report),), _ttl(state))


def withdraw(rules: Rules, call: Call[None]) -> Decision[None]:
    """End a subscription; only its owner may (S29). Raises `UnknownSubscription`, `NotOwner`."""
    record = _owned(rules.state, call.path["subscription"], call.query["token"])
    return rules.write(lambda: None, SUBSCRIPTIONS.removed(record))


def _ttl(state: CatalogState) -> Callable[[], SubscriptionRenewed]:
    return lambda: SubscriptionRenewed(state[SUBSCRIPTIONS].leases.ttl)


def _owned(state: CatalogState, key: str, token: int) -> SubscriptionRecord:
    record = state[SUBSCRIPTIONS].live(key)
    if record is None:
        raise UnknownSubscription(
            f"there is no subscription {key!r}: it was withdrawn, its lease lapsed, or its stream was deleted;"
            " subscribe again"
        )
    if record.token != token:
        raise NotOwner(f"the subscription {key} is another's: {token} is not the token that its owner was given")
    return record


def view(state: CatalogState, record: SubscriptionRecord) -> SubscriptionInfo:
    """A subscription with its last report, without its token, which only the owner may know (S29)."""
    report = state[SUBSCRIPTIONS].report(record.id) or SubscriptionReport()
    return SubscriptionInfo(
        record.id,
        state.name_of(record.uid),
        record.uid,
        record.subscriber,
        record.since,
        verified=state[SUBSCRIPTIONS].verified(record.id),
        lower=None if report.lower is None else tuple(report.lower),
        counters=report.counters,
    )


_items = entry_items(SUBSCRIPTIONS, view)

NOUN = Noun(
    SUBSCRIPTIONS,
    routes=(
        Write(subscriptions.SUBSCRIBE, subscribe),
        Listing(subscriptions.LIST_OF_STREAM, _items),
        Listing(subscriptions.LIST, _items),
        Write(subscriptions.RENEW, renew),
        Write(subscriptions.UNSUBSCRIBE, withdraw),
    ),
    errors={UnknownSubscription: 404, NotOwner: 409},
    gauge="Live readers",
)
