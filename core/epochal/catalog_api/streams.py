"""What clients can do with streams and their segments, and with the catalog's own stream (S26)."""

from dataclasses import dataclass
from types import NoneType

from pydantic import ConfigDict

from epochal.catalog_api.answers import SegmentInfo, StreamHead, StreamInfo
from epochal.catalog_api.kinds import Text
from epochal.catalog_api.operations import COUNT, STREAM, TEXT, Page, Shown, endpoint, list_endpoint
from epochal.operations import Operation, Parameter, Shape
from epochal.resources.manifest import API_VERSION

RESERVED = "$catalog"
"""The stream of the catalog's own changes: it has no namespace, and is followed with /v1/watch (S26)."""


class Reserved(Shown):
    """The catalog's own stream. Watching can begin at `first_revision` or later.

    `identity` tells this catalog's database from any other; a copy of it has the same. `data` is the data directory of
    local mode: absent for other machines, in lists, and where the catalog is not local mode's.
    """

    name: str
    identity: str
    revision: int
    first_revision: int
    watch: str
    streams: int
    publishers: int
    subscriptions: int
    relays: int
    data: str = ""


class Streams(Page):
    """Streams by name, and the catalog's own. `next` is the `after` of the next page, null on the last one.

    `revision` is that of the newest change.
    """

    items: list[StreamInfo]
    reserved: list[Reserved]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSegment(SegmentInfo):
    """A segment, with the stream that it is of."""

    __pydantic_config__ = ConfigDict(title="StreamSegment")

    stream: Text


class Segments(Page):
    """Segments, by stream and key range."""

    items: list[StreamSegment]


class Lookup(Shown):
    """Where to connect for a stream."""

    stream: StreamHead
    segments: list[SegmentInfo]


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
_OWN = f"/v1/streams/{RESERVED}"
_WAIT: Shape = {"type": "number", "minimum": 0}

APPLY = Operation(
    "apply_stream",
    "PUT",
    STREAM,
    "Declare a stream, or change its declaration",
    {200: StreamInfo, 201: StreamInfo},
    body={"application/json": _MANIFEST},
    errors=(409, 422, 503),
)
LIST = list_endpoint("list_streams", "/v1/streams", "List streams by name", Streams, StreamInfo)
GET = endpoint("get_stream", "GET", STREAM, "Show a stream", NoneType, StreamInfo, errors=(404,), tagged=True)
DELETE = endpoint(
    "delete_stream",
    "DELETE",
    STREAM,
    "Delete a stream",
    NoneType,
    NoneType,
    parameters=(Parameter("uid", TEXT, "Only the stream with this uid; 409 when another has the name by now"),),
    errors=(404, 409, 503),
)
GET_RESERVED = Operation(
    "get_reserved",
    "GET",
    _OWN,
    "Show the catalog's own stream",
    {200: Reserved},
    parameters=(
        Parameter("since", COUNT, "Refuse as /v1/watch would if the changes after this revision are not here"),
    ),
    errors=(409, 410, 422),
    tagged=True,
)
APPLY_RESERVED = Operation("apply_reserved", "PUT", _OWN, "Refused: the name is reserved", {}, errors=(409,))
DELETE_RESERVED = Operation("delete_reserved", "DELETE", _OWN, "Refused: the name is reserved", {}, errors=(409,))
LOOKUP = Operation(
    "lookup",
    "GET",
    f"{STREAM}/segments",
    "Find the publishers of a stream; 503 while a segment has none",
    {200: Lookup},
    parameters=(
        Parameter("wait", _WAIT, "Seconds to wait for the stream and its publishers; 0 when absent"),
        Parameter("time", TEXT, "The expected time shape, such as `int` or `(int, int)`"),
        Parameter("encoding", TEXT, "The expected payload encoding"),
        Parameter("schema", TEXT, "The expected payload schema, as JSON"),
        Parameter("segment", TEXT, "Wait only until this segment has a publisher whose token is not `token`"),
        Parameter("token", COUNT, "With `segment`: that of the publisher that is known, 0 for none"),
    ),
    errors=(404, 409, 422, 503),
)
LIST_SEGMENTS = list_endpoint(
    "list_segments", "/v1/segments", "List the segments of all streams", Segments, StreamSegment
)
