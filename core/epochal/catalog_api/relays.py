"""What clients can do with relays (F16)."""

from dataclasses import dataclass
from types import NoneType

from epochal.catalog_api.answers import RelayInfo
from epochal.catalog_api.kinds import Answer, Seconds
from epochal.catalog_api.operations import STREAM, Page, endpoint, list_endpoint
from epochal.catalog_api.requests import RegisterRelay, RelayReport


@dataclass(frozen=True, slots=True)
class RelayRenewed(Answer):
    """The relay is listed for another `ttl` seconds."""

    ttl: Seconds


class Relays(Page):
    """Relays, by id."""

    items: list[RelayInfo]


_PATH = "/v1/relays/{relay}"

REGISTER = endpoint(
    "register_relay",
    "POST",
    "/v1/relays",
    "List a relay, in place of one of the same id",
    RegisterRelay,
    RelayRenewed,
    status=201,
    errors=(404, 409, 410, 422, 503),
)
RENEW = endpoint(
    "renew_relay",
    "PUT",
    _PATH,
    "Renew a relay and report; percent-encode a `/` in its id",
    RelayReport,
    RelayRenewed,
    errors=(404, 422, 503),
)
DEREGISTER = endpoint(
    "deregister_relay",
    "DELETE",
    _PATH,
    "Take a relay off the list; percent-encode a `/` in its id",
    NoneType,
    NoneType,
    errors=(404, 503),
)
LIST = list_endpoint("list_relays", "/v1/relays", "List all relays", Relays, RelayInfo)
LIST_OF_STREAM = list_endpoint(
    "list_stream_relays", f"{STREAM}/relays", "List the relays of a stream", Relays, RelayInfo
)
