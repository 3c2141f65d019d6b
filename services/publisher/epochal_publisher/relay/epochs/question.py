"""Reads the requests of HTTP clients for whole epochs, and reports all problems of a request at once."""

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from aiohttp import web

from epochal.errors import CursorError, Problem, TimeShapeError, UsageError
from epochal.protocol.epochs.reader import Since
from epochal.protocol.epochs.ring import MOST_ID
from epochal.protocol.subscriber.cursor import MAX_TOPICS, Cursor
from epochal.protocol.subscriber.since import AfterTime, read_since
from epochal.protocol.times import TimeShape
from epochal.protocol.topics.filter import TopicFilter
from epochal.protocol.wire import MAX_TOPIC
from epochal.service.errors import InvalidRequest
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.http.history_query import given_twice, read_form, read_wait, unknown
from epochal_publisher.relay.epochs.errors import RequestTooLarge

FORMS = (Form.LINES, Form.SERVER_SENT)
"""The formats in which epochs are sent."""

_PARAMETERS = ("since", "topic", "reject", "wait")
_PLACES = "give a cursor as an answer had it, start, now, or time:T with a time in JSON"


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a GET of epochs; `wait` is in seconds."""

    since: Since | None
    """None for now."""
    text: str
    """`since` as it was sent."""
    field: str
    """The field in which it was sent: `since` or `Last-Event-ID`."""
    topics: TopicFilter
    wait: float
    form: Form


def read_question(request: web.Request, shape: TimeShape, max_wait: float) -> Question:
    """Read `?since=&topic=&reject=&wait=`, Accept and Last-Event-ID, which takes precedence over `since`.

    Raises `InvalidRequest`, `RequestTooLarge`, `NotAcceptable`.
    """
    form, query, problems = read_form(request.headers.get("Accept", ""), FORMS), request.query, list[Problem]()
    last = request.headers.get("Last-Event-ID", "")
    field, text = ("Last-Event-ID", last) if last else ("since", query.get("since", "now"))
    wanted, rejected = _prefixes(request, "topic"), _prefixes(request, "reject")
    _check_sizes(field, text, wanted, rejected)
    since = _since(field, text, shape, problems)
    for name, prefixes in (("topic", wanted), ("reject", rejected)):
        longest = max(map(len, prefixes), default=0)
        if longest > MAX_TOPIC:
            problems.append(Problem(name, f"has {longest} bytes; a topic has at most {MAX_TOPIC}"))
    problems += given_twice(query, ("since", "wait")) + given_twice(request.headers, ("Last-Event-ID",))
    wait = read_wait(query, max_wait, problems)
    problems += unknown(query, _PARAMETERS, f"the parameters are {', '.join(_PARAMETERS)}")
    if problems:
        raise InvalidRequest("the epochs cannot be asked for like this", problems)
    return Question(since, text, field, TopicFilter(wanted or None, rejected), wait, form)


def _prefixes(request: web.Request, name: str) -> list[bytes]:
    """The values of a parameter as bytes: topics need not be UTF-8."""
    pairs = (part.partition("=") for part in request.rel_url.raw_query_string.split("&"))
    return [unquote_to_bytes(value.replace("+", " ")) for key, _, value in pairs if key == name]


def _check_sizes(field: str, text: str, wanted: list[bytes], rejected: list[bytes]) -> None:
    if len(text) > MOST_ID:
        hint = "no relay gives out a longer cursor"
        raise RequestTooLarge("the cursor is too long", [Problem(field, f"has more than {MOST_ID} bytes", hint)])
    if sum(map(len, wanted)) + sum(map(len, rejected)) > MAX_TOPICS:
        larger = max(("topic", wanted), ("reject", rejected), key=lambda given: sum(map(len, given[1])))[0]
        hint = "give shorter prefixes, or fewer, and leave out the rest where you read"
        raise RequestTooLarge(
            "the filter is too large", [Problem(larger, f"with all others has more than {MAX_TOPICS} bytes", hint)]
        )


def _since(field: str, text: str, shape: TimeShape, problems: list[Problem]) -> Since | None:
    try:
        if text == "now":
            return None
        if text.startswith("{"):
            return Cursor.from_json(text)
        if text == "start" or text.startswith("time:"):
            parsed = read_since(text)
            if isinstance(parsed, AfterTime):
                shape.check(parsed.time)
            return text
        problems.append(Problem(field, f"is no place: {text[:40]!r}", _PLACES))
    except (CursorError, TimeShapeError, UsageError) as error:
        problems.append(Problem(field, str(error), _PLACES))
    return None
