"""The OpenAPI 3.1 document of a service, made from the table of its operations.

A service adds its routes from the same table (`epochal.operations`), so that document and routes cannot differ.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core.core_schema import DataclassSchema

from epochal.operations import Body, Operation, Parameter, Shape
from epochal.service.problems import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Wording:
    """What a document says in all operations: the schema of refusals, an answer without a body, shapes in paths.

    `longest`: the greatest value of the parameter `wait`, in seconds.
    """

    problem: str
    empty: str
    longest: float
    in_path: Mapping[str, Shape]


def paths(operations: Iterable[Operation], wording: Wording) -> dict[str, dict[str, Any]]:
    """The operations of a table, by path and method."""
    found: dict[str, dict[str, Any]] = {}
    for operation in operations:
        found.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, wording)
    return found


def document(title: str, description: str, paths: Mapping[str, Any], schemas: Mapping[str, Shape]) -> dict[str, Any]:
    """A whole document of version 3.1."""
    info = {"title": title, "version": version("epochal"), "description": description}
    return {"openapi": "3.1.0", "info": info, "paths": dict(paths), "components": {"schemas": dict(schemas)}}


def schema_name(model: type) -> str:
    """The name of a model in the document: the title in its configuration for pydantic, else the name of the class."""
    config = getattr(model, "__pydantic_config__", None) or getattr(model, "model_config", {})
    return str(config.get("title", model.__name__))


class _Schemas(GenerateJsonSchema):
    """Draws each dataclass that is an answer as it is sent: with all its fields, also those with a default."""

    def dataclass_schema(self, schema: DataclassSchema) -> Shape:
        """The schema of one dataclass."""
        shape = super().dataclass_schema(schema)
        if self.mode == "serialization":
            fields = {name: {**field} for name, field in shape["properties"].items()}
            for field in fields.values():
                field.pop("default", None)
                if field.pop("readOnly", False):  # of a property, whose docstring is for programs
                    field.pop("description", None)
            shape |= {"properties": fields, "required": [*fields], "additionalProperties": False}
        return shape


def schemas(operations: Iterable[Operation], *more: type) -> dict[str, Shape]:
    """The schemas of all models of a table, and of `more` answers, by name."""
    modes: dict[type, JsonSchemaMode] = dict.fromkeys(more, "serialization")
    for operation in operations:
        modes |= {body: "serialization" for body in operation.answers.values() if isinstance(body, type)}
        modes |= {body: "validation" for body in (operation.body,) if isinstance(body, type)}
    adapters: list[tuple[type, JsonSchemaMode, TypeAdapter[Any]]] = [
        (model, mode, TypeAdapter(model)) for model, mode in modes.items()
    ]
    _, made = TypeAdapter.json_schemas(adapters, schema_generator=_Schemas, ref_template="#/components/schemas/{model}")
    named = {name: shape["title"] for name, shape in made["$defs"].items()}
    text = re.sub(r"(?<=#/components/schemas/)\w+", lambda found: named[found[0]], json.dumps(made["$defs"]))
    return dict(sorted((named[name], shape) for name, shape in json.loads(text).items()))


def reference(name: str) -> Shape:
    """A schema of the document, by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(operation: Operation, wording: Wording) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *_path_parameters(operation.path, wording.in_path),
            *(_parameter(parameter, wording.longest) for parameter in operation.parameters),
        ],
        "responses": {
            **{str(status): _answer(body, operation, wording) for status, body in operation.answers.items()},
            **({"304": {"description": "What the client has is still so"}} if operation.tagged else {}),
            **{str(status): _refused(status, wording.problem) for status in operation.errors},
            "default": _refused(None, wording.problem),
        },
    }
    if operation.body is not None:
        shown["requestBody"] = {"required": True, "content": _content(operation.body)}
    return shown


def _content(body: Body) -> dict[str, Any]:
    if isinstance(body, type):
        body = {"application/json": reference(schema_name(body))}
    return {str(kind): {"schema": shape} for kind, shape in body.items()}


def _answer(body: Body | None, operation: Operation, wording: Wording) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": wording.empty if body is None else "The answer"}
    if body is not None:
        shown["content"] = _content(body)
    if operation.tagged:
        shown["headers"] = {"ETag": {"description": "For If-None-Match", "schema": {"type": "string"}}}
    return shown


def _parameter(parameter: Parameter, longest: float) -> dict[str, Any]:
    shape = {**parameter.shape, "maximum": longest} if parameter.name == "wait" else parameter.shape
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.text,
        "schema": shape,
    }


def _path_parameters(path: str, shapes: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """The parameters in a path, each a string unless `shapes` says more about it."""
    return [
        {"name": name, "in": "path", "required": True, "schema": shapes.get(name, {"type": "string"})}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _refused(status: int | None, schema: str) -> dict[str, Any]:
    """The answer of a refusal, as the problem document `schema`; None for every other status."""
    shown: dict[str, Any] = {
        "description": "Refused; `code` says why",
        "content": {CONTENT_TYPE: {"schema": reference(schema)}},
    }
    if status in (429, 503):
        shown["headers"] = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}}
    return shown
