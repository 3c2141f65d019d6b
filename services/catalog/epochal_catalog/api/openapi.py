"""The table of the catalog's operations: both the routes and the OpenAPI document are made from it."""

from functools import cache
from typing import Any

from epochal.catalog_api.operations import COUNT, TEXT, Shown
from epochal.catalog_api.problems import ProblemDocument
from epochal.operations import Operation, Parameter, Shape
from epochal.resources.names import MAX_NAME
from epochal.service.openapi import Wording, paths, schemas
from epochal.service.openapi import document as whole
from epochal_catalog.domain.kinds import KINDS, NOUNS

_IN_PATH: dict[str, Shape] = {
    "namespace": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63, "example": "demo"},
    "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": MAX_NAME, "example": "flights"},
    "writer": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Printable characters"},
}
_KINDS = [kind.name for kind in KINDS]
_EVENT: Shape = {
    "type": "object",
    "description": "One event: `id` is the revision, `event` the kind, `data` a change as JSON",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"enum": ["snapshot", *_KINDS]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


class Health(Shown):
    """How the process is."""

    status: str


OPERATIONS: tuple[Operation, ...] = (
    *(route.operation for noun in NOUNS for route in noun.routes),
    Operation(
        "watch",
        "GET",
        "/v1/watch",
        "Follow all changes as server-sent events; `Last-Event-ID` resumes as `since` does",
        {200: {"text/event-stream": _EVENT}},
        parameters=(Parameter("since", COUNT, "The revision that was seen last; from now on when absent"),),
        errors=(409, 410, 422, 503),
    ),
    Operation("healthz", "GET", "/healthz", "Whether the process runs", {200: Health}),
    Operation("readyz", "GET", "/readyz", "Whether it takes requests", {200: Health}, errors=(503,)),
    Operation("metrics", "GET", "/metrics", "Metrics as Prometheus text", {200: {"text/plain": TEXT}}),
    Operation(
        "openapi_document",
        "GET",
        "/openapi.json",
        "This document",
        {200: {"application/json": {"type": "object"}}},
    ),
)


@cache
def document(longest: float) -> dict[str, Any]:
    """The document of a catalog whose lookups wait for `longest` seconds at most; made once."""
    wording = Wording(ProblemDocument.__name__, empty="Done", longest=longest, in_path=_IN_PATH)
    return whole(
        "Epochal catalog",
        "Streams, segments, publishers, writers, subscriptions and relays. Times are ints or nested lists; durations"
        " are seconds.",
        paths(OPERATIONS, wording),
        schemas(OPERATIONS, ProblemDocument),
    )
