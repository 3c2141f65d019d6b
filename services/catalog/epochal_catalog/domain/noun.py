"""A noun of the catalog: a kind of record, with the operations that clients have on it.

The HTTP interface makes its routes, its OpenAPI document and the status of each error from these values. Nothing here
knows an HTTP library: `Call` is a request that was read and checked already.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict

from epochal.catalog_api.kinds import Answer
from epochal.errors import EpochalError
from epochal.service.operations import Operation, Parameter, Shape
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kind import Kind
from epochal_catalog.domain.leased_entries import E, LeasedEntries, P
from epochal_catalog.domain.pages import MOST, USUAL, PageRequest, after
from epochal_catalog.domain.state import CatalogState

STREAM = "/v1/streams/{namespace}/{name}"
"""The path of a stream."""
TEXT: Shape = {"type": "string"}
COUNT: Shape = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
TOKEN = (Parameter("token", COUNT, "The token that its owner was given", required=True),)
PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, f"Items of the page; {USUAL} when absent"),
    Parameter("after", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}, "What the page before gave as `next`"),
)
"""The parameters of a list of one stream."""
PAGES = (*PAGE, Parameter("namespace", TEXT, "Only streams of this namespace"))
"""The parameters of a list that goes over all streams."""

B = TypeVar("B")
Items: TypeAlias = Iterator[tuple[str, Callable[[], dict[str, Any]]]]
"""The items of a list after a key: the key of each, and what is shown of it."""


class Shown(BaseModel):
    """An answer that only the OpenAPI document needs as a model; what clients read is in `epochal.catalog_api`."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Page(Shown):
    """One page of a list; each list adds `items` to it."""

    next: str | None
    revision: int


@dataclass(frozen=True, slots=True)
class Call(Generic[B]):
    """One request. `path` and `query` have its parameters by name; numbers are read already.

    `at`: the time of the request, ISO 8601 in UTC. `fresh_id` and `fresh_token` are random and used by no other
    request: rules draw no random numbers.
    """

    body: B
    path: Mapping[str, str]
    query: Mapping[str, Any]
    at: str
    fresh_id: str
    fresh_token: int

    @property
    def stream(self) -> tuple[str, str]:
        """Namespace and name of the stream in the path."""
        return self.path["namespace"], self.path["name"]


@dataclass(frozen=True, slots=True)
class Write:
    """An operation that changes something: `decide` is its rule."""

    operation: Operation
    decide: Callable[[Rules, Call[Any]], Decision[Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    """An operation that lists something.

    `items` gets the state, the page, the uid of the stream when the path names one, and the time in monotonic seconds.
    """

    operation: Operation
    items: Callable[[CatalogState, PageRequest, str | None, float], Items]


@dataclass(frozen=True, slots=True)
class Noun:
    """A kind with its routes, and the HTTP status of each error that only they raise.

    `gauge` describes the metric that counts the records; without it there is none.
    """

    kind: Kind[Any, Any]
    routes: tuple[Write | Listing, ...] = ()
    errors: Mapping[type[EpochalError], int] = field(default_factory=dict)
    gauge: str = ""


def lists(
    kind: Kind[E, LeasedEntries[E, P]],
    page: type[Page],
    view: Callable[[CatalogState, E], Answer],
    summaries: tuple[str, str],
) -> tuple[Listing, Listing]:
    """The operations that list all live entries of a kind, and those of one stream; `summaries` describe them."""
    plural = kind.rows.table

    def items(state: CatalogState, asked: PageRequest, uid: str | None, _now: float) -> Items:
        entries = state[kind]
        for key in after(entries.keys if uid is None else entries.of(uid), asked.after):
            record = entries.live(key)
            if record is not None and asked.wants(state.name_of(record.uid)):
                yield key, partial(_shown, view, state, record)

    every = Operation(
        f"list_{plural}",
        "GET",
        f"/v1/{plural}",
        summaries[0],
        {200: page},
        parameters=PAGES,
        errors=(422,),
        tagged=True,
    )
    of_one = Operation(
        f"list_stream_{plural}",
        "GET",
        f"{STREAM}/{plural}",
        summaries[1],
        {200: page},
        parameters=PAGE,
        errors=(404, 422),
        tagged=True,
    )
    return Listing(every, items), Listing(of_one, items)


def _shown(view: Callable[[CatalogState, E], Answer], state: CatalogState, record: E) -> dict[str, Any]:
    return view(state, record).to_json()
