"""Reads JSON bodies of requests into models; one error names every problem.

All services share it: they all refuse the same mistakes, and a body that takes too long.
"""

import asyncio
import json
from functools import cache
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from epochal.errors import Problem
from epochal.service.errors import InvalidRequest
from epochal.service.openapi import schema_name

M = TypeVar("M")
"""A model of pydantic, or a dataclass that it reads."""


def loads(text: str | bytes) -> Any:
    """Parse strict JSON: `NaN` is refused. Raises `ValueError`, `RecursionError`."""
    return json.loads(text, parse_constant=_no_constant)


async def read_json(request: web.Request, timeout: float) -> Any:
    """The body as JSON. Raises `InvalidRequest`; answers 413 above the limit and 408 when it does not come in time.

    It must be called JSON: a web page of another site can send any other type without that its browser asks first.
    """
    if request.content_type != "application/json":
        wrong = Problem("Content-Type", f"is {request.content_type}", "send application/json")
        raise InvalidRequest("the body must be JSON, and called so", [wrong])
    try:
        async with asyncio.timeout(timeout):
            raw = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {timeout:g} s") from None
    try:
        return loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest("the body is not JSON", [Problem("body", reason, "send one JSON object")]) from None


async def read_model(request: web.Request, model: type[M], timeout: float) -> M:
    """The body as a model. Raises `InvalidRequest` with every wrong field."""
    return parse(model, await read_json(request, timeout))


def parse(model: type[M], document: Any) -> M:
    """Check a document against a model. Raises `InvalidRequest` with every wrong field."""
    kind: Any = model
    try:
        found: M = _adapter(kind).validate_python(document)
        return found
    except ValidationError as error:
        problems = [Problem(".".join(map(str, item["loc"])) or "body", _reason(item)) for item in error.errors()]
        raise InvalidRequest(f"the body is not a {schema_name(model)}", problems) from None


def _reason(item: ErrorDetails) -> str:
    """In pydantic's words, but without the names of our classes."""
    return "Input should be a valid dictionary" if item["type"] == "dataclass_type" else item["msg"]


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
