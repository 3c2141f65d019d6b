"""What clients can do with publishers and the segments that these serve (E12 fencing)."""

from dataclasses import dataclass
from types import NoneType

from epochal.catalog_api.answers import PublisherInfo, Registration, Renewal
from epochal.catalog_api.kinds import Answer, Flag
from epochal.catalog_api.operations import STREAM, TOKEN, Page, Shown, endpoint, list_endpoint
from epochal.catalog_api.problems import ProblemDocument
from epochal.catalog_api.requests import Finishing, Register, Renew, RenewTogether
from epochal.operations import Operation


@dataclass(frozen=True, slots=True)
class Completion(Answer):
    """Whether completion is recorded."""

    complete: Flag


class Publishers(Page):
    """Registrations, by id."""

    items: list[PublisherInfo]


class RenewedOne(Shown):
    """What became of one lease: the renewal, or the error that a request of its own would have got."""

    renewed: Renewal | None
    problem: ProblemDocument | None


class RenewedTogether(Shown):
    """In the order in which they were asked for."""

    items: list[RenewedOne]


_ALL = "/v1/publishers"
_ONE = "/v1/publishers/{publisher}"

FINISH = endpoint(
    "finish_segment",
    "PUT",
    f"{STREAM}/segments/{{segment}}/finishing",
    "Record a finishing mark of a segment",
    Finishing,
    Completion,
    errors=(404, 409, 410, 422, 503),
)
REGISTER = endpoint(
    "register_publisher",
    "POST",
    _ALL,
    "Take segments over",
    Register,
    Registration,
    status=201,
    errors=(404, 409, 410, 422, 503),
)
RENEW = endpoint(
    "renew_publisher",
    "PUT",
    _ONE,
    "Renew a lease and report",
    Renew,
    Renewal,
    errors=(404, 409, 410, 422, 503),
)
RENEW_TOGETHER = Operation(
    "renew_publishers",
    "PUT",
    _ALL,
    "Renew several leases and report; each is judged by itself",
    {200: RenewedTogether},
    body=RenewTogether,
    errors=(422, 503),
)
DEREGISTER = endpoint(
    "deregister_publisher",
    "DELETE",
    _ONE,
    "Leave",
    NoneType,
    NoneType,
    parameters=TOKEN,
    errors=(404, 409, 422, 503),
)
LIST = list_endpoint("list_publishers", _ALL, "List all registrations", Publishers, PublisherInfo)
