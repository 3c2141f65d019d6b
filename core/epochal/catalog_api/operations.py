"""The operations of the catalog as values, each declared once: the catalog serves them, and clients call them.

The operations of a noun are in the module of its name, such as `relays`. A type checker holds the rules of the catalog
and the calls of clients to the same bodies and answers.
"""

from dataclasses import dataclass, field
from types import NoneType
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from epochal.catalog_api.kinds import Answer
from epochal.catalog_api.requests import Request
from epochal.operations import Operation, Parameter, Shape

STREAM = "/v1/streams/{namespace}/{name}"
"""The path of a stream."""
TEXT: Shape = {"type": "string"}
COUNT: Shape = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
TOKEN = (Parameter("token", COUNT, "The token that its owner was given", required=True),)
MOST, USUAL = 1000, 500
"""Items of a page: the maximum, and the default."""
PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, f"Items of the page; {USUAL} when absent"),
    Parameter("after", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}, "What the page before gave as `next`"),
)
"""The parameters of a list of one stream."""
PAGES = (*PAGE, Parameter("namespace", TEXT, "Only streams of this namespace"))
"""The parameters of a list that goes over all streams."""

B = TypeVar("B", bound=Request | None)
A = TypeVar("A", bound=Answer | None)
I = TypeVar("I", bound=Answer)  # noqa: E741  # an item


class Shown(BaseModel):
    """An answer that only the OpenAPI document needs as a model: clients read its parts."""

    # The schemas are built when the document is made: building them here would double the time to import the client.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Page(Shown):
    """One page of a list; each list adds `items` to it."""

    next: str | None
    revision: int


@dataclass(frozen=True, slots=True)
class Endpoint(Operation, Generic[B, A]):
    """An operation with the types of its body and of its answer; None for no body."""

    takes: type[B] = field(kw_only=True)
    gives: type[A] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ListEndpoint(Operation, Generic[I]):
    """An operation that answers one page of a list of such items."""

    item: type[I] = field(kw_only=True)


def endpoint(
    name: str,
    method: str,
    path: str,
    summary: str,
    takes: type[B],
    gives: type[A],
    *,
    status: int = 200,
    errors: tuple[int, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    tagged: bool = False,
) -> Endpoint[B, A]:
    """An operation with one good status. `NoneType` is the type of no body; an answer without one has status 204."""
    body = None if takes is NoneType else takes
    answers = {204: None} if gives is NoneType else {status: gives}
    return Endpoint(
        name, method, path, summary, answers, errors, body, parameters, tagged=tagged, takes=takes, gives=gives
    )


def list_endpoint(name: str, path: str, summary: str, page: type[Page], item: type[I]) -> ListEndpoint[I]:
    """An operation that lists items page by page, of the stream in its path, or of all streams."""
    of_one = path.startswith(STREAM)
    errors, parameters = ((404, 422), PAGE) if of_one else ((422,), PAGES)
    return ListEndpoint(name, "GET", path, summary, {200: page}, errors, None, parameters, tagged=True, item=item)
