"""What clients can do with subscriptions (S29)."""

from dataclasses import dataclass
from types import NoneType

from epochal.catalog_api.answers import SubscriptionInfo, SubscriptionLease
from epochal.catalog_api.kinds import Answer, Seconds
from epochal.catalog_api.operations import STREAM, TOKEN, Page, endpoint, list_endpoint
from epochal.catalog_api.requests import RenewSubscription, Subscribe


@dataclass(frozen=True, slots=True)
class SubscriptionRenewed(Answer):
    """The subscription lasts another `ttl` seconds."""

    ttl: Seconds


class Subscriptions(Page):
    """Live subscriptions, by id."""

    items: list[SubscriptionInfo]


_PATH = "/v1/subscriptions/{subscription}"

SUBSCRIBE = endpoint(
    "subscribe",
    "POST",
    f"{STREAM}/subscriptions",
    "Make a reader known; each call is one subscription",
    Subscribe,
    SubscriptionLease,
    status=201,
    errors=(404, 409, 410, 422, 503),
)
LIST_OF_STREAM = list_endpoint(
    "list_stream_subscriptions",
    f"{STREAM}/subscriptions",
    "List the live subscriptions to a stream",
    Subscriptions,
    SubscriptionInfo,
)
LIST = list_endpoint(
    "list_subscriptions", "/v1/subscriptions", "List all live subscriptions", Subscriptions, SubscriptionInfo
)
RENEW = endpoint(
    "renew_subscription",
    "PUT",
    _PATH,
    "Renew a subscription and report",
    RenewSubscription,
    SubscriptionRenewed,
    errors=(404, 409, 422, 503),
)
UNSUBSCRIBE = endpoint(
    "unsubscribe",
    "DELETE",
    _PATH,
    "Withdraw a subscription",
    NoneType,
    NoneType,
    parameters=TOKEN,
    errors=(404, 409, 422, 503),
)
