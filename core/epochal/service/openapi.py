"""What OpenAPI documents of services have in common: their frame, parameters, and how a refusal looks.

Apart from each service's table of operations, which is all that differs.
"""

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, TypeAlias

from epochal.service.problems import CONTENT_TYPE

Shape: TypeAlias = dict[str, Any]
"""A JSON schema."""


def document(title: str, description: str, paths: Mapping[str, Any], schemas: Mapping[str, Shape]) -> dict[str, Any]:
    """A whole document of version 3.1."""
    info = {"title": title, "version": version("epochal"), "description": description}
    return {"openapi": "3.1.0", "info": info, "paths": dict(paths), "components": {"schemas": dict(schemas)}}


def reference(name: str) -> Shape:
    """A schema of the document, by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(kind: str, shape: Shape) -> dict[str, Any]:
    """What is in a body of one content type."""
    return {kind: {"schema": shape}}


def parameter(name: str, where: str, shape: Shape, text: str, *, required: bool = False) -> dict[str, Any]:
    """A parameter; `where` is `query` or `header`."""
    return {"name": name, "in": where, "required": required, "description": text, "schema": shape}


def path_parameters(path: str, shapes: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """The parameters in a path, each a string unless `shapes` says more of it."""
    return [
        {"name": name, "in": "path", "required": True, "schema": shapes.get(name, {"type": "string"})}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def refused(status: int | None, schema: str) -> dict[str, Any]:
    """The answer of a refusal, as the problem document `schema`; None for every other status."""
    shown: dict[str, Any] = {
        "description": "Refused; `code` says why",
        "content": content(CONTENT_TYPE, reference(schema)),
    }
    if status == 503:
        shown["headers"] = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}}
    return shown
