"""A noun of the catalog: a kind of record, with the operations that clients have on it.

The HTTP interface makes its routes, its OpenAPI document and the status of each error from these values. Nothing here
knows an HTTP library: `Call` is a request that was read and checked already.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias

from epochal.catalog_api.kinds import Answer
from epochal.catalog_api.operations import A, B, Endpoint, ListEndpoint
from epochal.errors import EpochalError
from epochal.operations import Operation
from epochal_catalog.domain.decisions import Decision, Rules
from epochal_catalog.domain.kind import Kind
from epochal_catalog.domain.leased_entries import E, LeasedEntries, P
from epochal_catalog.domain.pages import PageRequest, after
from epochal_catalog.domain.state import CatalogState

Items: TypeAlias = Iterator[tuple[str, Callable[[], dict[str, Any]]]]
"""The items of a list after a key: the key of each, and what is shown of it."""
ListItems: TypeAlias = Callable[[CatalogState, PageRequest, str | None, float], Items]


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
class Write(Generic[B, A]):
    """An operation that changes something: `decide` is its rule."""

    operation: Endpoint[B, A]
    decide: Callable[[Rules, Call[B]], Decision[A]]


@dataclass(frozen=True, slots=True)
class Listing:
    """An operation that lists something.

    `items` gets the state, the page, the uid of the stream when the path names one, and the time in monotonic seconds.
    `more`: what each page shows beside its items.
    """

    operation: ListEndpoint[Any]
    items: ListItems
    more: Callable[[CatalogState], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class ByHand:
    """An operation that a function of its name in `api.routes` answers, because none of the forms above fits it."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Noun:
    """A kind with its routes, and the HTTP status of each error that only they raise.

    `gauge` describes the metric that counts the records; without it there is none.
    """

    kind: Kind[Any, Any]
    routes: tuple[Write[Any, Any] | Listing | ByHand, ...] = ()
    errors: Mapping[type[EpochalError], int] = field(default_factory=dict)
    gauge: str = ""


def entry_items(kind: Kind[E, LeasedEntries[E, P]], view: Callable[[CatalogState, E], Answer]) -> ListItems:
    """What lists all live entries of a kind, or those of one stream."""

    def items(state: CatalogState, asked: PageRequest, uid: str | None, _now: float) -> Items:
        entries = state[kind]
        for key in after(entries.keys if uid is None else entries.of(uid), asked.after):
            record = entries.live(key)
            if record is not None and asked.wants(state.name_of(record.uid)):
                yield key, partial(_shown, view, state, record)

    return items


def _shown(view: Callable[[CatalogState, E], Answer], state: CatalogState, record: E) -> dict[str, Any]:
    return view(state, record).to_json()
