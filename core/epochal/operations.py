"""The HTTP operations of a service as values: what each takes, answers and refuses.

Services declare their operations with these, without any HTTP library; routes, the OpenAPI document and the calls of
clients are made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Shape: TypeAlias = dict[str, Any]
"""A JSON schema."""
Body: TypeAlias = type | Mapping[str, Shape]
"""A model in JSON, or a schema for each content type. A model is one of pydantic, or a dataclass that it reads."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    shape: Shape
    text: str
    required: bool = False
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path: what it takes, and its body (None: no body) for each good status."""

    name: str
    method: str
    path: str
    summary: str
    answers: Mapping[int, Body | None]
    errors: tuple[int, ...] = ()
    body: Body | None = None
    parameters: tuple[Parameter, ...] = ()
    tagged: bool = False
    """Has an ETag, and answers 304 to an If-None-Match with it."""

    def at(self, path: Mapping[str, str]) -> str:
        """Its path with these parameters, percent-encoded. Raises `KeyError` when one is missing.

        >>> Operation("get", "GET", "/v1/{id}", "", {}).at({"id": "a/b"})
        '/v1/a%2Fb'
        """
        return self.path.format(**{name: quote(value, safe="") for name, value in path.items()})
