"""The custom resource definition of a Stream, made from the one model that `epochal apply` and the catalog read.

Apart from the model because only a cluster needs it. The schema and its rules (CEL) refuse at admission what can be
refused there; what they cannot express (a shape's nesting, a type's grammar) is refused by the model, as a condition of
the object. `tests/resources/test_crd.py` lists where the two differ.
"""

from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from epochal.resources.names import MAX_NAME
from epochal.resources.quantities import format_bytes, format_duration
from epochal.resources.schemas import MAX_FIELDS, MAX_TYPE
from epochal.resources.schemas import MAX_NAME as MAX_FIELD_NAME
from epochal.resources.spec import AMOUNT_PATTERN, Form, StreamSpec

Json: TypeAlias = dict[str, Any]

GROUP, VERSION, KIND, PLURAL = "epochal.dev", "v1alpha1", "Stream", "streams"
CRD_NAME = f"{PLURAL}.{GROUP}"

_BYTES_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_DURATION_PATTERN = r"^([0-9]{1,15}h)?([0-9]{1,15}m)?([0-9]{1,15}s)?([0-9]{1,15}ms)?$"
_NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAMESPACE_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SHAPE_PATTERN = r"^[(),int ]+$"
_NO_DEFAULT = ("watermark",)
"""Sections without a default: what is planned is told as not in effect only where somebody asked for it."""
_MOST_TEXT, _MOST_SHAPE = 1024, 512
MOST_FRONTIER = 4096
"""Characters of the frontier in a status."""

_PAYLOAD_SCHEMA: Json = {
    "type": "object",
    "required": ["fields"],
    "properties": {
        "fields": {
            "type": "array",
            "description": "The fields, in order; their names differ.",
            "minItems": 1,
            "maxItems": MAX_FIELDS,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "description": "One field.",
                "required": ["name", "type"],
                "properties": {
                    "name": {
                        "type": "string",
                        "description": "The field's name.",
                        "minLength": 1,
                        "maxLength": MAX_FIELD_NAME,
                    },
                    "type": {
                        "type": "string",
                        "description": "The field's type, such as int32, string, timestamp[us, UTC], list<float64>.",
                        "minLength": 1,
                        "maxLength": MAX_TYPE,
                    },
                    "nullable": {
                        "type": "boolean",
                        "description": "Whether records may be without it.",
                        "default": True,
                    },
                },
            },
        }
    },
}


def rule(expression: str, message: str, path: str = "", reason: str = "") -> Json:
    """One CEL rule; `path` is the field that it is about."""
    found = {"rule": expression, "message": message, "fieldPath": path, "reason": reason}
    return {key: value for key, value in found.items() if value}


_LIVES = "it cannot change while the stream exists: delete the stream and apply it anew, or give it another name"
SPEC_RULES = (
    rule("self.time.shape == oldSelf.time.shape", _LIVES, ".time.shape", "FieldValueForbidden"),
    rule("self.payload.encoding == oldSelf.payload.encoding", _LIVES, ".payload.encoding", "FieldValueForbidden"),
    rule(
        "has(self.payload.schema) == has(oldSelf.payload.schema) &&"
        " (!has(self.payload.schema) || self.payload.schema == oldSelf.payload.schema)",
        f"the schema: {_LIVES}",
        ".payload",
        "FieldValueForbidden",
    ),
    rule(
        "self.segments == oldSelf.segments",
        "the number of segments cannot change for now: scaling a stream is planned",
        ".segments",
        "FieldValueForbidden",
    ),
    rule(
        "!(self.history.durability in ['batch', 'interval']) || has(self.history.storage)",
        "batch and interval need history.storage, such as {size: 10Gi}; or use durability memory",
        ".history.durability",
    ),
    rule(
        "!has(self.watermark) || self.watermark.noteTime != 'frontier' || self.time.shape == 'int'",
        "noteTime frontier needs time.shape int; use manual or wallclock",
        ".watermark",
    ),
    rule(
        "self.payload.encoding != 'bytes' || !has(self.payload.schema)",
        "a schema has no meaning for encoding bytes; leave it out",
        ".payload",
    ),
    rule(
        "self.publishers.advertise == '' || self.publishers.advertise.contains('{index}') ||"
        " self.segments <= self.publishers.segmentsPerPod",
        "is the same for all publishers; each needs an address of its own: put {index} in it",
        ".publishers.advertise",
    ),
)
ROOT_RULES = (
    rule(
        f"self.metadata.name.size() <= {MAX_NAME}",
        f"the name of a stream has at most {MAX_NAME} characters, so that names made from it fit",
    ),
    rule(
        f"self.metadata.name.matches('{_NAME_PATTERN}')",
        "the name of a stream is lower-case letters, digits and '-'; it starts with a letter and ends with a letter or"
        " digit",
    ),
)


def crd_text() -> str:
    """The definition as YAML text, as it stands in the chart."""
    return "# Made by `epochal-operator crd` from the model of a Stream; do not edit.\n" + yaml.safe_dump(
        stream_crd(), sort_keys=False, width=120, allow_unicode=True
    )


def stream_crd() -> Json:
    """The whole CustomResourceDefinition, JSON-safe."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["strm"],
                "categories": ["epochal"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _root()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.segments",
                            "statusReplicasPath": ".status.readySegments",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }


def _columns() -> list[Json]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    columns = [
        ("Segments", "integer", ".spec.segments", "Segments that the stream has", 0),
        ("Serving", "integer", ".status.readySegments", "Segments whose publisher is ready", 0),
        ("Ready", "string", f"{ready}.status", "Whether every segment is served", 0),
        ("Frontier", "string", ".status.frontier", "The times that are not complete yet begin here", 0),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created", 0),
        ("Reason", "string", f"{ready}.reason", "Why it is ready, or not", 1),
        ("Encoding", "string", ".spec.payload.encoding", "How a record is encoded", 1),
        ("Times", "string", ".spec.time.shape", "What a time looks like", 1),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
        for name, kind, path, text, priority in columns
    ]


def _root() -> Json:
    return {
        "type": "object",
        "description": "A stream of (time, record) pairs, served by publishers that the operator runs.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object"},
            "spec": {
                **model_schema(StreamSpec, "What is declared about the stream."),
                "x-kubernetes-validations": list(SPEC_RULES),
            },
            "status": _status(),
        },
        "x-kubernetes-validations": list(ROOT_RULES),
    }


def model_schema(model: type[BaseModel], description: str) -> Json:
    """The structural schema of a model: one property a field, named as in documents."""
    properties = {info.alias or name: field_schema(name, info) for name, info in model.model_fields.items()}
    required = [info.alias or name for name, info in model.model_fields.items() if info.is_required()]
    shown: Json = {"type": "object", "description": description, "properties": properties}
    return {**shown, "required": required} if required else shown


def field_schema(name: str, info: FieldInfo) -> Json:
    """The structural schema of one field, with its bounds and default."""
    assert info.description, "every field says what it means"
    shown = {**_schema(info.annotation, list(info.metadata)), "description": info.description}
    if name not in _NO_DEFAULT and not info.is_required() and info.get_default(call_default_factory=True) is not None:
        shown["default"] = _shown_default(info)
    return shown


def _schema(kind: Any, marks: list[Any]) -> Json:
    """Of a type; `marks` are its bounds and its form."""
    kind, marks = _unwrapped(kind, marks)
    form = next((mark for mark in marks if isinstance(mark, Form)), None)
    if form is not None:
        return _formed(form, marks)
    match get_origin(kind):
        case None:
            return _plain(kind, marks)
        case origin if origin is Literal:
            return {"type": "string", "enum": list(get_args(kind))}
        case origin if origin is dict:
            value = {"description": "A value.", **_schema(get_args(kind)[1], [])}
            return {"type": "object", "additionalProperties": value, **_most("maxProperties", marks)}
        case _:
            items = _schema(get_args(kind)[0], [])
            return {"type": "array", "items": items, **_most("maxItems", marks), "x-kubernetes-list-type": "atomic"}


def _unwrapped(kind: Any, marks: list[Any]) -> tuple[Any, list[Any]]:
    """Without `| None`, and with the marks that stand inside `Annotated`."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [choice for choice in get_args(kind) if choice is not NoneType]
    if hasattr(kind, "__metadata__"):
        return kind.__origin__, [*kind.__metadata__, *marks]
    return kind, marks


def _formed(form: Form, marks: list[Any]) -> Json:
    match form:
        case Form.BYTES:
            return _bytes(marks)
        case Form.DURATION:
            return _duration(marks)
        case Form.AMOUNT:
            return {"x-kubernetes-int-or-string": True, "pattern": f"^{AMOUNT_PATTERN}$", "maxLength": 40}
        case Form.NAMESPACE:
            return {"type": "string", "pattern": _NAMESPACE_PATTERN, "maxLength": 63}
        case Form.SHAPE:
            return {"type": "string", "pattern": _SHAPE_PATTERN, "minLength": 2, "maxLength": _MOST_SHAPE}
        case Form.SCHEMA:
            return dict(_PAYLOAD_SCHEMA)


def _plain(kind: type, marks: list[Any]) -> Json:
    if issubclass(kind, BaseModel):
        return model_schema(kind, (kind.__doc__ or "").split("\n")[0])
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        low, high = _bounds(marks)
        return {"type": "integer", "format": "int64", "minimum": low, "maximum": high}
    assert kind is str, kind
    least = [mark.min_length for mark in marks if isinstance(mark, MinLen)]
    return {"type": "string", **({"minLength": least[0]} if least else {}), **_most("maxLength", marks)}


def _bytes(marks: list[Any]) -> Json:
    low, high = _bounds(marks)
    texts = format_bytes(low), format_bytes(high)
    as_number = f"self >= {low} && self <= {high}"
    as_text = (
        f"!quantity(self).isLessThan(quantity('{texts[0]}')) && !quantity(self).isGreaterThan(quantity('{texts[1]}'))"
    )
    bounds = rule(f"type(self) == int ? {as_number} : {as_text}", f"must be from {texts[0]} to {texts[1]}")
    return {
        "x-kubernetes-int-or-string": True,
        "pattern": _BYTES_PATTERN,
        "maxLength": 32,
        "x-kubernetes-validations": [bounds],
    }


def _duration(marks: list[Any]) -> Json:
    low, high = map(format_duration, _bounds(marks))
    bounds = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    return {
        "type": "string",
        "pattern": _DURATION_PATTERN,
        "minLength": 2,
        "maxLength": 40,
        "x-kubernetes-validations": [rule(bounds, f"must be from {low} to {high}")],
    }


def _bounds(marks: list[Any]) -> tuple[Any, Any]:
    """Every number of a manifest has both."""
    [low] = [mark.ge for mark in marks if isinstance(mark, Ge)]
    [high] = [mark.le for mark in marks if isinstance(mark, Le)]
    return low, high


def _most(key: str, marks: list[Any]) -> Json:
    """Every text and every list has a bound, or the rules that walk it could cost anything."""
    return {key: next((mark.max_length for mark in marks if isinstance(mark, MaxLen)), _MOST_TEXT)}


def _shown_default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return {}  # the defaults of its fields fill it
    form = next((mark for mark in info.metadata if isinstance(mark, Form)), None)
    if form is Form.BYTES:
        return format_bytes(default)
    if form is Form.DURATION:
        return format_duration(default)
    return list(default) if isinstance(default, tuple) else default


def _status() -> Json:
    number = {"type": "integer", "format": "int64", "minimum": 0}
    return {
        "type": "object",
        "description": "What the operator has seen of the stream.",
        "properties": {
            "observedGeneration": {**number, "description": "The metadata.generation that the status is of."},
            "segments": {**number, "description": "How many segments the stream has."},
            "readySegments": {**number, "description": "How many segments have a publisher that is ready."},
            "selector": {
                "type": "string",
                "description": "The label selector of the publisher pods.",
                "maxLength": _MOST_TEXT,
            },
            "frontier": {
                "type": "string",
                "description": "The lower frontier of all segments: times that cannot reach one of these are complete."
                " How many there are, where they are too many to show.",
                "maxLength": MOST_FRONTIER,
            },
            "catalogUid": {
                "type": "string",
                "description": "The stream's uid in the catalog.",
                "maxLength": _MOST_TEXT,
            },
            "notInEffect": {
                "type": "array",
                "description": "Fields that were given, and whose function is planned, or that the volumes are not as.",
                "maxItems": 32,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": _MOST_TEXT},
            },
            "conditions": {
                "type": "array",
                "description": "Ready, Progressing and Degraded.",
                "maxItems": 8,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": _condition(),
            },
        },
    }


def _condition() -> Json:
    return {
        "type": "object",
        "description": "One condition, as Kubernetes has them.",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "description": "Ready, Progressing or Degraded.", "maxLength": 316},
            "status": {"type": "string", "description": "Whether it holds.", "enum": ["True", "False", "Unknown"]},
            "reason": {
                "type": "string",
                "description": "Why, in one word.",
                "minLength": 1,
                "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "message": {"type": "string", "description": "Why, in words.", "maxLength": 32768},
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the status last changed.",
            },
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "The metadata.generation that it is of.",
            },
        },
    }
