"""The problems of a document, as a person reads them: path, reason, hint.

Pydantic's own messages are not shown, because they name the types of Python.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from epochal.errors import Problem
from epochal.resources.quantities import format_bytes, format_duration

MAX_NODES = 20_000
MAX_DEPTH = 24
"""Bounds for hostile documents. A manifest has a few dozen values, a few levels deep."""

_WANTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of fields",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a mapping of fields",
    "string_type": "a text",
    "tuple_type": "a list",
}


def path_of(parts: Sequence[str | int]) -> str:
    """A path as text, such as `spec.access.publish[0].namespace`; `document` for the whole.

    >>> path_of(["spec", "access", "publish", 0, "namespace"])
    'spec.access.publish[0].namespace'
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in parts)
    return text.lstrip(".") or "document"


def show(value: object) -> str:
    """`value` with its kind, short enough for a message.

    >>> show("x"), show(None), show([1])
    ("the text 'x'", 'nothing', 'a list')
    """
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text '{value[:40]}{'...' if len(value) > 40 else ''}'"
        case int():
            return f"the number {value}" if value.bit_length() <= 128 else "a number of more than 128 bits"
        case float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a value of kind {type(value).__name__}"


def nearest(word: str, known: Sequence[str]) -> str:
    """`did you mean X?` if a known word is similar, else the list of known words."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:80].lower(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    return f"known here: {', '.join(known)}" if known else ""


def plain_problems(document: object) -> list[Problem]:
    """Problems of a document whatever its kind: values that JSON does not have, keys that are no text, size, depth."""
    problems: list[Problem] = []
    stack: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    seen = 0
    while stack:
        path, value = stack.pop()
        seen += 1
        if seen > MAX_NODES:
            return [Problem("document", f"holds more than {MAX_NODES} values", "a manifest needs a few dozen")]
        if len(path) > MAX_DEPTH:
            return [Problem(path_of(path[:4]), f"is nested more than {MAX_DEPTH} levels deep")]
        stack.extend(_children(path, value, problems))
    return problems


def _children(
    path: tuple[str | int, ...], value: object, problems: list[Problem]
) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield (*path, key), inner
            else:
                problems.append(Problem(path_of(path), f"has a field whose name is {show(key)}", "put it in quotes"))
    elif isinstance(value, list | tuple):
        yield from (((*path, index), inner) for index, inner in enumerate(value))
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(path_of(path), "is not a finite number"))
    elif value is not None and not isinstance(value, str | int | float):
        problems.append(Problem(path_of(path), f"is {show(value)}", "put it in quotes if a text is meant"))


def from_validation(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[Problem]:
    """Pydantic's errors on `model` as problems, with paths under `prefix`."""
    return [_problem(details, model, prefix) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, model: type[BaseModel], prefix: tuple[str, ...]) -> Problem:
    path = path_of((*prefix, *details["loc"]))
    given, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "missing":
            return Problem(path, "is required", _example(path))
        case "extra_forbidden":
            return Problem(
                path, "is not a field", nearest(str(details["loc"][-1]), _fields(model, details["loc"][:-1]))
            )
        case "literal_error":
            return _not_one_of(path, given, context)
        case "greater_than_equal" | "less_than_equal":
            return _out_of_bounds(path, given, details["type"], context)
        case "string_too_short" | "string_too_long":
            return Problem(path, "is empty" if not given else "is too long")
        case "too_long":
            return Problem(path, "has too many entries", f"at most {context['max_length']}")
        case "value_error":
            reason = str(context.get("error", ""))
            return Problem(
                path, f"{reason}, not {show(given)}" if reason.startswith("must") else f"{show(given)} {reason}"
            )
        case kind if kind in _WANTED:
            return Problem(path, f"must be {_WANTED[kind]}, not {show(given)}")
        case _:
            return Problem(path, details["msg"])


def _not_one_of(path: str, given: object, context: Mapping[str, Any]) -> Problem:
    expected = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
    hint = nearest(given, expected) if isinstance(given, str) else ""
    choice = expected[0] if len(expected) == 1 else f"one of {', '.join(expected)}"
    return Problem(path, f"must be {choice}, not {show(given)}", hint if hint.startswith("did") else "")


def _out_of_bounds(path: str, given: object, kind: str, context: Mapping[str, Any]) -> Problem:
    word, key = ("at least", "ge") if kind == "greater_than_equal" else ("at most", "le")
    bound = context[key]
    if isinstance(given, float):  # only durations are floats in a manifest
        return Problem(path, f"{format_duration(given)} is out of bounds", f"{word} {format_duration(bound)}")
    if isinstance(given, int) and bound >= 2**16:  # and only sizes have such bounds
        return Problem(path, f"{format_bytes(given)} is out of bounds", f"{word} {format_bytes(bound)}")
    return Problem(path, f"{show(given)} is out of bounds", f"{word} {bound}")


_EXAMPLES = {
    "apiVersion": "epochal.dev/v1alpha1",
    "kind": "Stream",
    "metadata": "{name: flights}",
    "metadata.name": "flights",
    "spec": "{time: {shape: int}, payload: {encoding: msgpack}}",
    "spec.time": "{shape: int}",
    "spec.time.shape": 'int or "(int, int)"',
    "spec.payload": "{encoding: msgpack}",
    "spec.payload.encoding": "msgpack",
    "spec.history.storage.size": "10Gi",
}


def _example(path: str) -> str:
    return f"e.g. {_EXAMPLES[path]}" if path in _EXAMPLES else ""


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The names of the fields that a document may have at `path`."""
    for part in path:
        if isinstance(part, int):
            continue
        inner = next((info.annotation for name, info in model.model_fields.items() if part in (name, info.alias)), None)
        found = _model_in(inner)
        if found is None:
            return []
        model = found
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in getattr(annotation, "__args__", ()) if (found := _model_in(inner))), None)
