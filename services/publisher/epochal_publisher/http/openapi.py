"""The table of a publisher's operations: both the routes and the OpenAPI document are made from it."""

from collections.abc import Mapping
from typing import Any

from epochal.operations import Body, Operation, Parameter, Shape
from epochal.service.openapi import Wording, paths, reference
from epochal.service.openapi import document as whole
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.http.history_query import MOST_CALLBACK, MOST_EVENTS, SUBSCRIPTION, USUAL_EVENTS

_SEGMENT = "/v1/segments/{segment}"
_INT: Shape = {"type": "integer"}
_TEXT: Shape = {"type": "string"}
_OBJECT: Shape = {"type": "object"}
_POSITION: Shape = {
    "type": "array",
    "description": "Incarnation and sequence number: just after that event",
    "prefixItems": [{"type": "integer", "minimum": 0}, {"type": "integer", "minimum": -1}],
    "minItems": 2,
    "maxItems": 2,
    "items": False,
}
TIME: Shape = {"description": "A time: an integer or nested arrays of them", "type": ["integer", "array"]}
TIMES: Shape = {"type": "array", "items": {"$ref": "#/components/schemas/Time"}}
_PLACE = r"^(start|now|([0-9]{1,18}\.)?(-1|[0-9]{1,18}))$"


def described(description: str, required: str = "", **properties: Shape) -> Shape:
    """An object with required properties: those that `required` names, or all if it is empty."""
    return {
        "type": "object",
        "description": description,
        "required": required.split() or list(properties),
        "properties": properties,
    }


_OPENING: dict[str, Any] = {
    "kind": {"const": "opening"}, "position": reference("Position"), "lower": TIMES, "active": TIMES,
    "aborted": TIMES, "below": TIMES, "incarnation": _INT,
}  # fmt: skip
BATCH_FIELDS: dict[str, Shape] = {
    "topic": _TEXT,
    "topic_encoding": {"const": "base64"},
    "key": _TEXT,
    "key_encoding": {"const": "base64"},
    "published": {**_INT, "description": "The writer's wall clock: milliseconds since 1970"},
    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
    "headers_encoding": {"const": "base64"},
    "traceparent": {**_TEXT, "description": "Where the batch was made, as W3C Trace Context writes it"},
    "tracestate": _TEXT,
    "records": {"type": "array"},
    "encoding": {"const": "base64"},
    "payload": {"type": "string", "contentEncoding": "base64"},
    "count": _INT,
}
"""The fields of a batch, of which each batch has some."""
PROBLEM_FIELDS: dict[str, Shape] = {
    "type": _TEXT, "title": _TEXT, "status": _INT, "detail": _TEXT, "code": _TEXT, "retryable": {"type": "boolean"},
    "problems": {"type": "array", "items": _OBJECT},
}  # fmt: skip
"""The fields of a refusal, the last of them in some."""
SCHEMAS: dict[str, Shape] = {
    "Position": _POSITION,
    "Time": TIME,
    "Opening": described("The state just after `position`; an empty `lower`: nothing can follow", **_OPENING),
    "Event": described(
        "One event; its kind says which fields it has",
        "position kind",
        position=reference("Position"),
        kind={"enum": ["data", "frontier", "aborted"]},
        time=reference("Time"),
        **BATCH_FIELDS,
        changes={"type": "array", "items": {"type": "array"}},
        times=TIMES,
        subscription=_TEXT,
    ),
    "NewWebhook": {
        **described(
            "Where to deliver, from where on, under which id",
            "callback subscription",
            callback={"type": "string", "format": "uri", "maxLength": MOST_CALLBACK},
            subscription={"type": "string", "pattern": SUBSCRIPTION, "description": "Fresh, such as a random UUID"},
            since={
                "description": "A position, or where history begins; from now on when null or absent",
                "oneOf": [{"type": "null"}, {"type": "string", "pattern": _PLACE}, _INT, reference("Position")],
            },
        ),
        "additionalProperties": False,
    },
    "Begun": described("Where it begins, and the state there", **_OPENING, subscription=_TEXT),
    "Webhooks": described(
        "The web-hooks that have not ended",
        items={
            "type": "array",
            "items": described(
                "A web-hook; `position` is after the last delivery that was accepted",
                subscription=_TEXT, callback=_TEXT, position=reference("Position"), failures=_INT, failing=_TEXT,
            ),
        },
    ),
    "Problem": described(
        "Why it was refused: `code` is stable",
        "type title status detail code retryable",
        **PROBLEM_FIELDS, first_available=reference("Position"), frontier=TIMES,
    ),
}  # fmt: skip


_POSITION_TEXT: Shape = {"type": "string", "pattern": _PLACE}
_OF_EVENTS = (
    Parameter("since", _POSITION_TEXT, "A position, `start` (when absent) or `now`"),
    Parameter("wait", {"type": "number", "minimum": 0}, "How long to wait for the first event; 0 when absent"),
    Parameter(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS},
        f"Events of the answer at most; {USUAL_EVENTS} when absent",
    ),
    Parameter(
        "Last-Event-ID",
        {"anyOf": [_POSITION_TEXT, {"const": ""}]},
        "Of server-sent events, in place of `since`; empty is as none",
        where="header",
    ),
)
_LINES: Shape = {"description": "One JSON object a line: an Opening, then Events", **_TEXT}
READINESS: Mapping[int, Body] = {200: {"text/plain": _TEXT}, 503: {"text/plain": _TEXT}}
"""The answers to `/readyz`; the second where it is not ready, for people as the first."""
OPERATIONS = (
    Operation(
        "events",
        "GET",
        _SEGMENT + "/events",
        "The events strictly after a position, in order; by `Accept` as JSON lines, msgpack or server-sent events",
        {
            200: {
                Form.LINES: _LINES,
                Form.MSGPACK: {"description": "The same as msgpack maps, payloads as they are", **_TEXT},
                Form.SERVER_SENT: {"description": "The same, each with its position as id, as they come", **_TEXT},
            },
            204: None,
        },
        (404, 406, 410, 422, 503),
        parameters=_OF_EVENTS,
    ),
    Operation(
        "list_webhooks",
        "GET",
        _SEGMENT + "/webhooks",
        "List the web-hooks that have not ended",
        {200: {"application/json": reference("Webhooks")}},
        (404, 503),
    ),
    Operation(
        "register_webhook",
        "POST",
        _SEGMENT + "/webhooks",
        "Have events delivered to a callback",
        {201: {"application/json": reference("Begun")}},
        (403, 404, 409, 410, 422, 503),
        body={"application/json": reference("NewWebhook")},
    ),
    Operation(
        "cancel_webhook",
        "DELETE",
        _SEGMENT + "/webhooks/{subscription}",
        "End a web-hook; its id stays used",
        {204: None},
        (404,),
    ),
    Operation("healthz", "GET", "/healthz", "Whether the process runs", {200: {"text/plain": _TEXT}}),
    Operation("readyz", "GET", "/readyz", "Whether it owns its segments and serves", READINESS),
    Operation("metrics", "GET", "/metrics", "Metrics as Prometheus text", {200: {"text/plain": _TEXT}}),
    Operation(
        "openapi_document", "GET", "/v1/openapi.json", "This document", {200: {"application/json": dict(_OBJECT)}}
    ),
)


def document(max_wait: float) -> dict[str, Any]:
    """The document of a publisher whose questions wait for `max_wait` seconds at most."""
    wording = Wording("Problem", empty="There is nothing more to say", longest=max_wait, in_path={})
    return whole(
        "Epochal publisher",
        "The events of the segments that this process serves. Durations are seconds.",
        paths(OPERATIONS, wording),
        SCHEMAS,
    )
