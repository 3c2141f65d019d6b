"""The table of the catalog's operations: both the routes and the OpenAPI document are made from it."""

from functools import cache
from typing import Any

from epochal.catalog_api import answers, requests
from epochal.resources.manifest import API_VERSION
from epochal.resources.names import MAX_NAME
from epochal.service.openapi import Operation, Parameter, Shape, Wording, paths, schemas
from epochal.service.openapi import document as whole
from epochal_catalog.api import models
from epochal_catalog.domain.pages import MOST, USUAL

RESERVED = "$catalog"
"""The stream of the catalog's own changes: it has no namespace, and is followed with /v1/watch (S26)."""


_STREAM = "/v1/streams/{namespace}/{name}"
_OWN = f"/v1/streams/{RESERVED}"
_SUBSCRIPTION = "/v1/subscriptions/{subscription}"
_RELAY = "/v1/relays/{relay}"
_TEXT: Shape = {"type": "string"}
_COUNT: Shape = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_WAIT: Shape = {"type": "number", "minimum": 0}
_TOKEN = (Parameter("token", _COUNT, "The token that its owner was given", required=True),)
_PAGE = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, f"Items of the page; {USUAL} when absent"),
    Parameter("after", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}, "What the page before gave as `next`"),
)
_PAGES = (*_PAGE, Parameter("namespace", _TEXT, "Only streams of this namespace"))
_IN_PATH: dict[str, Shape] = {
    "namespace": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63, "example": "demo"},
    "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": MAX_NAME, "example": "flights"},
    "writer": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Printable characters"},
}
_EVENT: Shape = {
    "type": "object",
    "description": "One event: `id` is the revision, `event` the kind, `data` a change as JSON",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"enum": ["snapshot", "stream", "segment", "publisher", "session", "subscription", "relay"]},
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


OPERATIONS = (
    Operation(
        "apply_stream",
        "PUT",
        _STREAM,
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
        parameters=_PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation("get_stream", "GET", _STREAM, "Show a stream", {200: answers.StreamInfo}, errors=(404,), tagged=True),
    Operation(
        "delete_stream",
        "DELETE",
        _STREAM,
        "Delete a stream",
        {204: None},
        parameters=(Parameter("uid", _TEXT, "Only the stream with this uid; 409 when another has the name by now"),),
        errors=(404, 409, 503),
    ),
    Operation(
        "get_reserved",
        "GET",
        _OWN,
        "Show the catalog's own stream",
        {200: models.Reserved},
        parameters=(
            Parameter("since", _COUNT, "Refuse as /v1/watch would if the changes after this revision are not here"),
        ),
        errors=(409, 410, 422),
        tagged=True,
    ),
    Operation("apply_reserved", "PUT", _OWN, "Refused: the name is reserved", {}, errors=(409,)),
    Operation("delete_reserved", "DELETE", _OWN, "Refused: the name is reserved", {}, errors=(409,)),
    Operation(
        "lookup",
        "GET",
        _STREAM + "/segments",
        "Find the publishers of a stream; 503 while a segment has none",
        {200: models.Lookup},
        parameters=(
            Parameter("wait", _WAIT, "Seconds to wait for the stream and its publishers; 0 when absent"),
            Parameter("time", _TEXT, "The expected time shape, such as `int` or `(int, int)`"),
            Parameter("encoding", _TEXT, "The expected payload encoding"),
            Parameter("schema", _TEXT, "The expected payload schema, as JSON"),
            Parameter("segment", _TEXT, "Wait only until this segment has a publisher whose token is not `token`"),
            Parameter("token", _COUNT, "With `segment`: that of the publisher that is known, 0 for none"),
        ),
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "list_segments",
        "GET",
        "/v1/segments",
        "List the segments of all streams",
        {200: models.Segments},
        parameters=_PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation(
        "list_writers",
        "GET",
        _STREAM + "/writers",
        "List the writers of a stream",
        {200: models.Writers},
        parameters=_PAGE,
        errors=(404, 422),
        tagged=True,
    ),
    Operation(
        "open_session",
        "POST",
        _STREAM + "/writers/{writer}/sessions",
        "Get the next session number of a writer; percent-encode a `/` in its id",
        {201: answers.WriterSession},
        parameters=(Parameter("after", _COUNT, "Only if this is still the writer's newest session; 409 if it is not"),),
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "forget_writer",
        "DELETE",
        _STREAM + "/writers/{writer}",
        "Forget a writer that has left and never comes again; percent-encode a `/` in its id",
        {204: None},
        parameters=(Parameter("session", _COUNT, "The only session that it ever had; 409 if it had others", True),),
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "release_writer",
        "POST",
        _STREAM + "/writers/{writer}/release",
        "Let a lost writer go; percent-encode a `/` in its id",
        {200: models.Released},
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "finish_segment",
        "PUT",
        _STREAM + "/segments/{segment}/finishing",
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
        parameters=_TOKEN,
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "list_publishers",
        "GET",
        "/v1/publishers",
        "List all registrations",
        {200: models.Publishers},
        parameters=_PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation(
        "subscribe",
        "POST",
        _STREAM + "/subscriptions",
        "Make a reader known; each call is one subscription",
        {201: answers.SubscriptionLease},
        body=requests.Subscribe,
        errors=(404, 409, 410, 422, 503),
    ),
    Operation(
        "list_stream_subscriptions",
        "GET",
        _STREAM + "/subscriptions",
        "List the live subscriptions to a stream",
        {200: models.Subscriptions},
        parameters=_PAGE,
        errors=(404, 422),
        tagged=True,
    ),
    Operation(
        "list_subscriptions",
        "GET",
        "/v1/subscriptions",
        "List all live subscriptions",
        {200: models.Subscriptions},
        parameters=_PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation(
        "renew_subscription",
        "PUT",
        _SUBSCRIPTION,
        "Renew a subscription and report",
        {200: models.SubscriptionRenewed},
        body=requests.RenewSubscription,
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "unsubscribe",
        "DELETE",
        _SUBSCRIPTION,
        "Withdraw a subscription",
        {204: None},
        parameters=_TOKEN,
        errors=(404, 409, 422, 503),
    ),
    Operation(
        "register_relay",
        "POST",
        "/v1/relays",
        "List a relay, in place of one of the same id",
        {201: models.RelayRenewed},
        body=requests.RegisterRelay,
        errors=(404, 409, 410, 422, 503),
    ),
    Operation(
        "renew_relay",
        "PUT",
        _RELAY,
        "Renew a relay and report; percent-encode a `/` in its id",
        {200: models.RelayRenewed},
        body=requests.RelayReport,
        errors=(404, 422, 503),
    ),
    Operation(
        "deregister_relay",
        "DELETE",
        _RELAY,
        "Take a relay off the list; percent-encode a `/` in its id",
        {204: None},
        errors=(404, 503),
    ),
    Operation(
        "list_relays",
        "GET",
        "/v1/relays",
        "List all relays",
        {200: models.Relays},
        parameters=_PAGES,
        errors=(422,),
        tagged=True,
    ),
    Operation(
        "list_stream_relays",
        "GET",
        _STREAM + "/relays",
        "List the relays of a stream",
        {200: models.Relays},
        parameters=_PAGE,
        errors=(404, 422),
        tagged=True,
    ),
    Operation(
        "watch",
        "GET",
        "/v1/watch",
        "Follow all changes as server-sent events; `Last-Event-ID` resumes as `since` does",
        {200: {"text/event-stream": _EVENT}},
        parameters=(Parameter("since", _COUNT, "The revision that was seen last; from now on when absent"),),
        errors=(409, 410, 422, 503),
    ),
    Operation("healthz", "GET", "/healthz", "Whether the process runs", {200: models.Health}),
    Operation("readyz", "GET", "/readyz", "Whether it takes requests", {200: models.Health}, errors=(503,)),
    Operation("metrics", "GET", "/metrics", "Metrics as Prometheus text", {200: {"text/plain": _TEXT}}),
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
