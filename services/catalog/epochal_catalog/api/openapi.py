"""The table of the catalog's operations: both the routes and the OpenAPI document are made from it."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from epochal.catalog_api import answers, requests
from epochal.resources.manifest import API_VERSION
from epochal.resources.names import MAX_NAME
from epochal.service.openapi import Wording, paths, schemas
from epochal.service.openapi import document as whole
from epochal.service.operations import Operation, Parameter, Shape
from epochal_catalog.api import models
from epochal_catalog.domain.kinds import KINDS, NOUNS
from epochal_catalog.domain.noun import COUNT, PAGES, STREAM, TEXT, TOKEN, Noun

RESERVED = "$catalog"
"""The stream of the catalog's own changes: it has no namespace, and is followed with /v1/watch (S26)."""


_OWN = f"/v1/streams/{RESERVED}"
_WAIT: Shape = {"type": "number", "minimum": 0}
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
_MANIFEST: Shape = {
    "type": "object",
    "description": "A Stream manifest; a field that is not in it, or of another kind, is refused by name",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": "Stream"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {"type": "object", "required": ["time", "payload"]},
    },
    "example": {
        "apiVersion": API_VERSION,
        "kind": "Stream",
        "metadata": {"namespace": "demo", "name": "flights"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "msgpack"}, "segments": 2},
    },
}


def _operations(nouns: Iterable[Noun]) -> Iterator[Operation]:
    return (route.operation for noun in nouns for route in noun.routes)


OPERATIONS = (
    Operation(
        "apply_stream",
        "PUT",
        STREAM,
        "Declare a stream, or change its declaration",
        {200: answers.StreamInfo, 201: answers.StreamInfo},
        body={"application/json": _MANIFEST},
        errors=(409, 422, 503),
    ),
    Operation(
        "list_streams",
        "GET",
        "/v1/streams",
        "List streams by name",
        {200: models.Streams},
        parameters=PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation("get_stream", "GET", STREAM, "Show a stream", {200: answers.StreamInfo}, errors=(404,), tagged=True),
    Operation(
        "delete_stream",
        "DELETE",
        STREAM,
        "Delete a stream",
        {204: None},
        parameters=(Parameter("uid", TEXT, "Only the stream with this uid; 409 when another has the name by now"),),
        errors=(404, 409, 503),
    ),
    Operation(
        "get_reserved",
        "GET",
        _OWN,
        "Show the catalog's own stream",
        {200: models.Reserved},
        parameters=(
            Parameter("since", COUNT, "Refuse as /v1/watch would if the changes after this revision are not here"),
        ),
        errors=(409, 410, 422),
        tagged=True,
    ),
    Operation("apply_reserved", "PUT", _OWN, "Refused: the name is reserved", {}, errors=(409,)),
    Operation("delete_reserved", "DELETE", _OWN, "Refused: the name is reserved", {}, errors=(409,)),
    Operation(
        "lookup",
        "GET",
        STREAM + "/segments",
        "Find the publishers of a stream; 503 while a segment has none",
        {200: models.Lookup},
        parameters=(
            Parameter("wait", _WAIT, "Seconds to wait for the stream and its publishers; 0 when absent"),
            Parameter("time", TEXT, "The expected time shape, such as `int` or `(int, int)`"),
            Parameter("encoding", TEXT, "The expected payload encoding"),
            Parameter("schema", TEXT, "The expected payload schema, as JSON"),
            Parameter("segment", TEXT, "Wait only until this segment has a publisher whose token is not `token`"),
            Parameter("token", COUNT, "With `segment`: that of the publisher that is known, 0 for none"),
        ),
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "list_segments",
        "GET",
        "/v1/segments",
        "List the segments of all streams",
        {200: models.Segments},
        parameters=PAGES,
        errors=(422,),
        tagged=True,
    ),
    *_operations(NOUNS[:1]),
    Operation(
        "finish_segment",
        "PUT",
        STREAM + "/segments/{segment}/finishing",
        "Record a finishing mark of a segment",
        {200: models.Completion},
        body=requests.Finishing,
        errors=(404, 409, 410, 422, 503),
    ),
    Operation(
        "register_publisher",
        "POST",
        "/v1/publishers",
        "Take segments over",
        {201: answers.Registration},
        body=requests.Register,
        errors=(404, 409, 410, 422, 503),
    ),
    Operation(
        "renew_publisher",
        "PUT",
        "/v1/publishers/{publisher}",
        "Renew a lease and report",
        {200: answers.Renewal},
        body=requests.Renew,
        errors=(404, 409, 410, 422, 503),
    ),
    Operation(
        "renew_publishers",
        "PUT",
        "/v1/publishers",
        "Renew several leases and report; each is judged by itself",
        {200: models.RenewedTogether},
        body=requests.RenewTogether,
        errors=(422, 503),
    ),
    Operation(
        "deregister_publisher",
        "DELETE",
        "/v1/publishers/{publisher}",
        "Leave",
        {204: None},
        parameters=TOKEN,
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "list_publishers",
        "GET",
        "/v1/publishers",
        "List all registrations",
        {200: models.Publishers},
        parameters=PAGES,
        errors=(422,),
        tagged=True,
    ),
    *_operations(NOUNS[1:]),
    Operation(
        "watch",
        "GET",
        "/v1/watch",
        "Follow all changes as server-sent events; `Last-Event-ID` resumes as `since` does",
        {200: {"text/event-stream": _EVENT}},
        parameters=(Parameter("since", COUNT, "The revision that was seen last; from now on when absent"),),
        errors=(409, 410, 422, 503),
    ),
    Operation("healthz", "GET", "/healthz", "Whether the process runs", {200: models.Health}),
    Operation("readyz", "GET", "/readyz", "Whether it takes requests", {200: models.Health}, errors=(503,)),
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
    wording = Wording(models.ProblemDocument.__name__, empty="Done", longest=longest, in_path=_IN_PATH)
    return whole(
        "Epochal catalog",
        "Streams, segments, publishers, writers, subscriptions and relays. Times are ints or nested lists; durations"
        " are seconds.",
        paths(OPERATIONS, wording),
        schemas(OPERATIONS, models.ProblemDocument),
    )
