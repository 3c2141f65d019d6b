"""What an API server does with a document of a custom resource, as far as its schema says: defaults, types, rules.

Apart from the tests because several want it. `tests/cluster/api/test_crd.py` asks a real API server the same.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import cel
import jsonschema

from epochal.resources.crd import stream_crd
from epochal.resources.quantities import parse_bytes
from epochal.resources.relay_crd import relay_crd

SCHEMA: dict[str, Any] = stream_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
RELAY_SCHEMA: dict[str, Any] = relay_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def admitted(document: Any, old: Any = None) -> list[str]:
    """Why an API server refuses `document` (an update of `old`, where given); nothing when it takes it."""
    schema = RELAY_SCHEMA if document["kind"] == "Relay" else SCHEMA
    problems = [error.message for error in jsonschema.Draft202012Validator(_plain(schema)).iter_errors(document)]
    if problems:
        return problems
    return list(_broken(schema, defaulted(schema, document), None if old is None else defaulted(schema, old)))


def defaulted(schema: dict[str, Any], value: Any) -> Any:
    """`value` with the schema's defaults filled in."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        filled = {name: inner["default"] for name, inner in known.items() if "default" in inner and name not in value}
        return {name: defaulted(known.get(name, {}), inner) for name, inner in {**filled, **value}.items()}
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), item) for item in value]
    return value


def _plain(schema: Any) -> Any:
    """The schema as plain JSON Schema: amounts are ints or texts, unknown fields are refused."""
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key in ("items", "additionalProperties")}
    plain |= {key: value for key, value in schema.items() if key in _KEPT}
    if "properties" in schema:
        plain["properties"] = {name: _plain(inner) for name, inner in schema["properties"].items()}
        plain["additionalProperties"] = False
    elif schema.get("type") == "object" and "additionalProperties" not in schema:
        plain["additionalProperties"] = True  # metadata, which the API server knows by itself
    if schema.get("x-kubernetes-int-or-string"):
        plain["type"] = ["integer", "string"]
    return plain


_KEPT = (
    "type", "enum", "required", "pattern", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
)  # fmt: skip


def _broken(schema: dict[str, Any], value: Any, old: Any) -> Iterator[str]:
    for item in schema.get("x-kubernetes-validations", ()):
        uses_old = "oldSelf" in item["rule"]
        if not uses_old or old is not None:
            variables = {"self": value, **({"oldSelf": old} if uses_old else {})}
            try:
                holds = cel.evaluate(item["rule"], cel.Context(variables=variables, functions=_FUNCTIONS))
            except (RuntimeError, ValueError):
                holds = False  # an API server refuses what a rule cannot be computed for
            if holds is not True:
                yield item["message"]
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _broken(inner, value[name], old.get(name) if isinstance(old, dict) else None)
    if isinstance(value, list):
        for item in value:
            yield from _broken(schema.get("items", {}), item, None)


def _quantity(text: str) -> int:
    """Thousandths of a byte, so that what is no whole number compares too."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]  # by the pattern
    whole, _, fraction = number.partition(".")
    if unit == "m":
        return int(whole)
    return parse_bytes(f"{whole}{fraction}{unit}") * 1000 // 10 ** len(fraction)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isLessThan": lambda one, other: one < other,
    "isGreaterThan": lambda one, other: one > other,
    "asApproximateFloat": lambda one: one / 1000,
}
