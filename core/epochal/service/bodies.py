"""Reads JSON bodies of requests into models; one error names every problem.

All services share it: they all refuse the same mistakes, and a body that takes too long.
"""

import asyncio
import json
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from epochal.errors import Problem
from epochal.service.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)


def loads(text: str | bytes) -> Any:
    """Parse strict JSON: `NaN` is refused. Raises `ValueError`, `RecursionError`."""
    return json.loads(text, parse_constant=_no_constant)


async def read_json(request: web.Request, timeout: float) -> Any:
    """The body as JSON. Raises `InvalidRequest`; answers 413 above the limit and 408 when it does not come in time."""
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
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = [Problem(".".join(map(str, item["loc"])) or "body", item["msg"]) for item in error.errors()]
        raise InvalidRequest(f"the body is not a {model.__name__}", problems) from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
