"""What clients can do with the writers of a stream and their sessions (E6 sessions)."""

from dataclasses import dataclass
from types import NoneType

from epochal.catalog_api.answers import WriterInfo, WriterSession
from epochal.catalog_api.kinds import Answer, Text, Whole
from epochal.catalog_api.operations import COUNT, STREAM, Page, endpoint, list_endpoint
from epochal.operations import Parameter


class Writers(Page):
    """All that ever had a session of the stream, by id."""

    items: list[WriterInfo]


@dataclass(frozen=True, slots=True)
class Released(Answer):
    """The writer's newest session, which is released (E46 hold)."""

    writer: Text
    session: Whole


_WRITER = f"{STREAM}/writers/{{writer}}"

LIST = list_endpoint("list_writers", f"{STREAM}/writers", "List the writers of a stream", Writers, WriterInfo)
OPEN = endpoint(
    "open_session",
    "POST",
    f"{_WRITER}/sessions",
    "Get the next session number of a writer; percent-encode a `/` in its id",
    NoneType,
    WriterSession,
    status=201,
    parameters=(Parameter("after", COUNT, "Only if this is still the writer's newest session; 409 if it is not"),),
    errors=(404, 409, 422, 503),
)
FORGET = endpoint(
    "forget_writer",
    "DELETE",
    _WRITER,
    "Forget a writer that has left and never comes again; percent-encode a `/` in its id",
    NoneType,
    NoneType,
    parameters=(Parameter("session", COUNT, "The only session that it ever had; 409 if it had others", True),),
    errors=(404, 409, 422, 503),
)
RELEASE = endpoint(
    "release_writer",
    "POST",
    f"{_WRITER}/release",
    "Let a lost writer go; percent-encode a `/` in its id",
    NoneType,
    Released,
    errors=(404, 409, 422, 503),
)
