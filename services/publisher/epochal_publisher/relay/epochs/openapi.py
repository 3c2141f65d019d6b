"""The table of a relay's HTTP operations: both the routes and the OpenAPI document are made from it."""

from typing import Any

from epochal.operations import Operation, Parameter, Shape
from epochal.protocol.epochs.ring import MOST_ID
from epochal.service.openapi import Wording, paths, reference
from epochal.service.openapi import document as whole
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.http.openapi import BATCH_FIELDS, PROBLEM_FIELDS, READINESS, TIME, TIMES, described
from epochal_publisher.relay.epochs.encoding import Kind

_INT: Shape = {"type": "integer"}
_TEXT: Shape = {"type": "string"}
_SEGMENT: Shape = {**_TEXT, "description": "The id of a segment"}
SCHEMAS: dict[str, Shape] = {
    "Time": TIME,
    "Batch": described(
        "A batch of records, as its writer appended it", "segment topic", segment=_SEGMENT, **BATCH_FIELDS
    ),
    "Item": described(
        "One line or event; its kind says which fields it has: those of a Problem where it is `refused`",
        "kind",
        kind={"enum": [kind.value for kind in Kind]},
        time=reference("Time"),
        batches={"type": "array", "items": reference("Batch")},
        parts={**_INT, "description": "How many parts of this epoch came before"},
        frontier={**TIMES, "description": "Every epoch that can still come is at or after one of these"},
        segment=_SEGMENT,
        incarnation=_INT,
        seq=_INT,
        below=TIMES,
        cursor={
            "type": ["string", "null"],
            "description": f"Where to go on; null if it is longer than {MOST_ID} bytes. Events have it as their id",
        },
        cursor_bytes={**_INT, "description": "How long it is, where it is null"},
        **PROBLEM_FIELDS,  # of `refused`
    ),
    "Problem": described(
        "Why it was refused: `code` is stable", "type title status detail code retryable", **PROBLEM_FIELDS
    ),
}

_PREFIXES: Shape = {"type": "array", "items": {"type": "string"}}
_SINCE: Shape = {"type": "string", "maxLength": MOST_ID}
_OF_EPOCHS = (
    Parameter("since", _SINCE, "A cursor, `start`, `now` (when absent), or `time:T`: epochs that are not <= T"),
    Parameter("topic", _PREFIXES, "Prefixes of the topics that are wanted; all when absent"),
    Parameter("reject", _PREFIXES, "Prefixes of topics that are not wanted; the longest prefix decides"),
    Parameter("wait", {"type": "number", "minimum": 0}, "How long to wait for the first epoch; 0 when absent"),
    Parameter("Last-Event-ID", _SINCE, "A cursor, in place of `since`; empty is as none", where="header"),
)
OPERATIONS = (
    Operation(
        "epochs",
        "GET",
        "/v1/epochs",
        "Whole epochs of all segments after a cursor; by `Accept` as JSON lines or server-sent events",
        {
            200: {
                Form.LINES: {"description": "One JSON object a line: Items, a frontier or complete at last", **_TEXT},
                Form.SERVER_SENT: {"description": "The same, as they come", **_TEXT},
            },
            204: None,
        },
        (404, 406, 410, 413, 422, 429, 503, 507),
        parameters=_OF_EPOCHS,
    ),
    Operation("healthz", "GET", "/healthz", "Whether the process runs", {200: {"text/plain": _TEXT}}),
    Operation("readyz", "GET", "/readyz", "Whether it serves", READINESS),
    Operation("metrics", "GET", "/metrics", "Metrics as Prometheus text", {200: {"text/plain": _TEXT}}),
    Operation(
        "openapi_document", "GET", "/v1/openapi.json", "This document", {200: {"application/json": {"type": "object"}}}
    ),
)  # fmt: skip


def document(max_wait: float) -> dict[str, Any]:
    """The document of a relay whose requests wait for `max_wait` seconds at most."""
    wording = Wording(
        "Problem", empty="The stream is complete, and there is nothing more", longest=max_wait, in_path={}
    )
    return whole(
        "Epochal relay",
        "Whole epochs of the stream that this process serves. Durations are seconds.",
        paths(OPERATIONS, wording),
        SCHEMAS,
    )
