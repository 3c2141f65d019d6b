"""Reads query parameters into values; one error names every problem."""

import math
from collections.abc import Mapping

from aiohttp import web

from epochal.catalog_api.operations import MOST, USUAL
from epochal.errors import ManifestError, Problem, TimeShapeError
from epochal.operations import Parameter
from epochal.protocol.messages import MAX_ID, is_id
from epochal.protocol.times import TimeShape
from epochal.resources.schemas import Schema
from epochal.service.bodies import loads
from epochal.service.errors import InvalidRequest
from epochal_catalog.domain.kinds.streams import ExpectedStream
from epochal_catalog.domain.pages import PageRequest, key_of
from epochal_catalog.runtime.service import Catalog

CATALOG: web.AppKey[Catalog] = web.AppKey("catalog", Catalog)


def read_wait(request: web.Request, limit: float) -> float:
    """`?wait=SECONDS`, 0 when absent."""
    text = request.query.get("wait", "0")
    try:
        wait = float(text)
    except ValueError:
        wait = math.nan
    if not 0 <= wait <= limit:
        problem = Problem("wait", f"must be seconds from 0 to {limit:g}, not {text[:40]!r}", "ask again to wait longer")
        raise InvalidRequest("the parameter wait cannot be used", [problem])
    return wait


def read_expected(request: web.Request) -> ExpectedStream:
    """`?time=SHAPE&encoding=NAME&schema=JSON`, each optional (S28)."""
    time, schema = request.query.get("time"), request.query.get("schema")
    try:
        shape = None if time is None else TimeShape.parse(time)
    except TimeShapeError as error:
        raise InvalidRequest("the parameter time is no time shape", [Problem("time", str(error))]) from None
    try:
        wanted = None if schema is None else Schema.parse(loads(schema), "schema")
    except ManifestError as error:
        raise InvalidRequest("the parameter schema is no schema", error.problems) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the parameter schema is not JSON", [Problem("schema", str(error))]) from None
    return ExpectedStream(shape, request.query.get("encoding"), wanted)


def read_another(request: web.Request) -> tuple[str, int] | None:
    """`?segment=ID&token=N`: wait for a publisher of the segment other than the one with this token."""
    segment = request.query.get("segment")
    if segment is None and "token" not in request.query:
        return None
    token = read_count(request, "token")
    if segment is None:
        raise InvalidRequest(
            "the parameter token needs a segment", [Problem("segment", "must name the segment that the token is of")]
        )
    return segment, token


def read_parameter(request: web.Request, parameter: Parameter) -> int | str:
    """A parameter of an operation: a whole number where its shape says so, else the text."""
    if parameter.shape["type"] == "integer":
        return read_count(request, parameter.name)
    return request.query.get(parameter.name, "")


def read_count(request: web.Request, name: str) -> int:
    """A whole number that must be given."""
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest(
            f"the parameter {name} cannot be used", [Problem(name, f"must be a number, not {text[:40]!r}")]
        )
    return int(text)


def read_page(request: web.Request) -> PageRequest:
    """`?limit=N&after=TEXT&namespace=NAME`, each optional."""
    limit = read_count(request, "limit") if "limit" in request.query else USUAL
    after = request.query.get("after", "")
    problems = []
    if not 1 <= limit <= MOST:
        problems.append(Problem("limit", f"must be 1 to {MOST}, not {limit}"))
    try:
        after = key_of(after)
    except ValueError:
        problems.append(Problem("after", "must be what an earlier page gave as next", "leave it out to begin"))
    if problems:
        raise InvalidRequest("there is no such page", problems)
    return PageRequest(limit, after, request.query.get("namespace"))


def read_since(request: web.Request) -> int | None:
    """The last revision that a watcher has seen: Last-Event-ID, which is newer and so wins, or `?since=`."""
    return read_revision(request.headers.get("Last-Event-ID") or request.query.get("since"))


def read_revision(text: str | None) -> int | None:
    """A revision, as text; None for none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        problem = Problem("since", f"must be a revision, not {text[:40]!r}", "leave it out to watch from now on")
        raise InvalidRequest("there is no such revision", [problem])
    return int(text)


def read_path(request: web.Request) -> Mapping[str, str]:
    """The parameters in the path. A writer id has 1 to 253 printable characters; `/` may be among them."""
    path = request.match_info
    if not is_id(path.get("writer", "any")):
        raise InvalidRequest(
            "the writer id cannot be used", [Problem("writer", f"must be 1 to {MAX_ID} printable characters")]
        )
    return path
