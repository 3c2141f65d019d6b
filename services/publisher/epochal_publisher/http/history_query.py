"""Reads the requests of HTTP clients for events and web-hooks, and reports all problems of a request at once.

The same checks serve queries, headers and bodies.
"""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from aiohttp import web
from multidict import MultiMapping
from pydantic import BaseModel, ConfigDict, Field

from epochal.errors import Problem
from epochal.protocol.messages import Position
from epochal.service.bodies import read_model
from epochal.service.errors import InvalidRequest
from epochal_publisher.errors import NotAcceptable
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.segments.follower import PRESENT, NamedPlace, StartPlace

USUAL_EVENTS = 1_000
MOST_EVENTS = 10_000
MOST_CALLBACK = 2_048
SUBSCRIPTION = r"^[A-Za-z0-9._~-]{1,128}$"

_PARAMETERS = frozenset(("since", "wait", "limit"))
_POSITION = re.compile(r"(?:(\d{1,18})\.)?(-1|\d{1,18})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,400}(\.[0-9]{0,400})?([eE][+-]?[0-9]{1,9})?")
_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?")
"""The weight of a format that is not acceptable."""
_ANYTHING = frozenset(("", "*/*", "application/*", "application/json", Form.LINES))
_PACKED = frozenset((Form.MSGPACK, "application/x-msgpack", "application/vnd.msgpack"))


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a GET of events; `wait` is in seconds."""

    since: StartPlace
    resumes: bool
    """Whether the position comes from Last-Event-ID."""
    wait: float
    limit: int
    form: Form


class NewWebhook(BaseModel):
    """The body that registers a web-hook."""

    model_config = ConfigDict(extra="forbid", strict=True)
    callback: str = Field(max_length=MOST_CALLBACK)
    subscription: str = Field(pattern=SUBSCRIPTION)
    since: str | int | Annotated[list[int], Field(min_length=2, max_length=2)] | None = None


def read_question(request: web.Request, max_wait: float) -> Question:
    """`?since=&wait=&limit=`, Accept and Last-Event-ID. Raises `InvalidRequest`, `NotAcceptable`."""
    query, problems = request.query, list[Problem]()
    form, last = read_form(request.headers.get("Accept", "")), request.headers.get("Last-Event-ID")
    resumes = form is Form.SERVER_SENT and bool(last)
    start = (last or "") if resumes else query.get("since", NamedPlace.START)
    since = _place(start)
    if last and _place(last) is None:  # also where it is not used: a client that sends it means something by it
        problems.append(_no_place("Last-Event-ID", last))
    elif since is None:
        problems.append(_no_place("since", start))
    problems += given_twice(query, _PARAMETERS)
    wait = read_wait(query, max_wait, problems)
    limit = _number(query.get("limit", str(USUAL_EVENTS)))
    if not 1 <= limit <= MOST_EVENTS or limit != int(limit):
        problems.append(Problem("limit", f"must be 1 to {MOST_EVENTS} events, not {query['limit'][:40]!r}"))
    problems += unknown(query, _PARAMETERS, "the parameters are since, wait and limit")
    if problems or since is None:
        raise InvalidRequest("the events cannot be asked for like this", problems)
    return Question(since, resumes, wait, int(limit), form)


def given_twice(query: MultiMapping[str], names: Iterable[str]) -> list[Problem]:
    """The problems with parameters that may be given only once."""
    return [
        Problem(name, "is given more than once", "leave all but one out")
        for name in names
        if len(query.getall(name, ())) > 1
    ]


def unknown(query: MultiMapping[str], names: Collection[str], hint: str) -> list[Problem]:
    """The problems with parameters that are not in `names`."""
    return [Problem(name[:40], "is not known", hint) for name in sorted(set(query) - set(names))]


def read_wait(query: MultiMapping[str], max_wait: float, problems: list[Problem]) -> float:
    """The parameter `wait`, seconds; adds what is wrong with it to `problems`."""
    wait = _number(query.get("wait", "0"))
    if not 0 <= wait <= max_wait:
        hint = "ask again to wait longer"
        problems.append(Problem("wait", f"must be seconds from 0 to {max_wait:g}, not {query['wait'][:40]!r}", hint))
    return wait


def read_form(accept: str, forms: Collection[Form] = tuple(Form)) -> Form:
    """The format of an answer by the Accept header; lines if any is accepted, none with q=0. Raises `NotAcceptable`."""
    parts = [[piece.strip().lower() for piece in part.split(";")] for part in accept.split(",")]
    kinds = [kind for kind, *parameters in parts if not any(map(_REFUSED.fullmatch, parameters))]
    if Form.SERVER_SENT in kinds:
        return Form.SERVER_SENT
    for kind in kinds:
        if kind in _PACKED and Form.MSGPACK in forms:
            return Form.MSGPACK
        if kind in _ANYTHING:
            return Form.LINES
    raise NotAcceptable(f"it comes as {', '.join(forms)}; Accept names none of these")


async def read_webhook(request: web.Request, timeout: float) -> tuple[NewWebhook, StartPlace]:
    """The body of a registration, and where it begins. Raises `InvalidRequest`, as `read_model` does."""
    webhook = await read_model(request, NewWebhook, timeout)
    if webhook.since is None:
        return webhook, NamedPlace.NOW
    text = str(webhook.since) if isinstance(webhook.since, str | int) else ".".join(map(str, webhook.since))
    since = _place(text)
    if since is None:
        raise InvalidRequest("there is no such place", [_no_place("since", text)])
    return webhook, since


def _place(text: str) -> StartPlace | None:
    """`start`, `now`, `INC.SEQ`, or `SEQ` of the present incarnation."""
    if text in (NamedPlace.START, NamedPlace.NOW):
        return NamedPlace(text)
    found = _POSITION.fullmatch(text)
    if found is None:
        return None
    incarnation, seq = found.groups()
    return Position(PRESENT if incarnation is None else int(incarnation), int(seq))


def _no_place(name: str, text: str) -> Problem:
    return Problem(name, f"is no position: {text[:40]!r}", "give start, now, INCARNATION.SEQ or SEQ")


def _number(text: str) -> float:
    """A number as a client in any language writes it; NaN for anything else, even if Python would accept it."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan
