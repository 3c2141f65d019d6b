"""The custom resource definition of a Stream, derived from pydantic's schema of the model; `relay_crd` has a Relay's.

A small transformation adds what Kubernetes needs: a structural schema, patterns for amounts, and CEL rules. With these
the API server refuses a wrong object at admission, as far as they can express what is wrong. The rest (the nesting of a
time's shape, the grammar of a field's type) is refused by the model, and shown as a condition of the object.
`tests/resources/test_crd.py` lists where the two differ.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeAlias

from epochal.resources.names import MAX_NAME
from epochal.resources.quantities import format_bytes, format_duration
from epochal.resources.schemas import MAX_FIELDS, MAX_TYPE
from epochal.resources.schemas import MAX_NAME as MAX_FIELD_NAME
from epochal.resources.spec import (
    ACCOUNT_PATTERN,
    AMOUNT_PATTERN,
    DIRECT,
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    LEAST_MEMORY,
    RELAY_HOST_PATTERN,
    SUBDOMAIN_PATTERN,
    Fields,
    Object,
    StreamSpec,
    ValueFormat,
)
from epochal.web_origin import ORIGIN_PATTERN, USUAL_PORT_PATTERN

GROUP, VERSION, KIND = "epochal.dev", "v1alpha1", "Stream"
Column: TypeAlias = tuple[str, str, str, str, int]
"""Name, type, path, description and priority of a column of `kubectl get`."""

_BYTES_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_DURATION_PATTERN = r"^([0-9]{1,15}h)?([0-9]{1,15}m)?([0-9]{1,15}s)?([0-9]{1,15}ms)?$"
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAMESPACE_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SHAPE_PATTERN = r"^[(),int ]+$"
_NO_DEFAULT = ("watermark",)
"""Sections without a default. They are not in effect yet, which is reported only where a user gives them."""
MOST_TEXT, _MOST_SHAPE = 1024, 512
MOST_LOST = 64
"""Lost volumes that a status lists at most."""
MOST_FRONTIER = 4096
"""Characters of the frontier that a status shows at most."""

_KEYS = (
    *(
        "x-kubernetes-int-or-string",
        "type",
        "format",
        "enum",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
    ),
    *("items", "maxItems", "additionalProperties", "maxProperties", "x-kubernetes-list-type"),
    *("x-kubernetes-validations", "description", "properties", "required", "default"),
)
"""The keys of a schema, in the order in which they are written."""

_PAYLOAD_SCHEMA: Object = {
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


def rule(expression: str, message: str, path: str = "", reason: str = "") -> Object:
    """One CEL rule; `path` is the field that a violation names."""
    found = {"rule": expression, "message": message, "fieldPath": path, "reason": reason}
    return {key: value for key, value in found.items() if value}


_LIVES = "it cannot change while the stream exists: delete the stream and apply it again, or give it another name"
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
        "!has(self.history.storage) || self.history.retention.mode == 'none' || self.history.durability == 'memory' ||"
        " !quantity(string(self.history.retention.bytes)).isGreaterThan(quantity(string(self.history.storage.size)))",
        "retention.bytes is more than the volume has (storage.size), which would be full before anything is dropped",
        ".history.retention",
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
        " self.segments <= (has(self.publishers.segmentsPerPod) ? self.publishers.segmentsPerPod : 1)",
        "is the same for all publishers; each needs an address of its own: put {index} in it",
        ".publishers.advertise",
    ),
    rule(
        "!has(self.publishers.httpPort) || !has(self.publishers.segmentsPerPod) ||"
        " self.publishers.segmentsPerPod >= self.segments",
        "is one port, and the stream has several publishers; leave out segmentsPerPod, or the port",
        ".publishers.httpPort",
    ),
    rule(
        "!has(self.relayHttpPort) || self.relays == 1",
        "is the port of one relay: set relays to 1, or leave the port out",
        ".relayHttpPort",
    ),
    rule(
        "!has(self.relayHttpPort) || !has(self.publishers.httpPort) || self.relayHttpPort != self.publishers.httpPort",
        "is publishers.httpPort too; choose another port for one",
        ".relayHttpPort",
    ),
)


_LEAST = format_bytes(LEAST_MEMORY)
_MEMORY = "has(self.{0}limits) && 'memory' in self.{0}limits"
MODEL_RULES: dict[str, list[Object]] = {
    "ResourcesSpec": [
        rule(
            f"!({_MEMORY.format('')}) || !quantity(string(self.limits['memory'])).isLessThan(quantity('{_LEAST}'))",
            f"no process of Epochal starts with so little memory: limits.memory is at least {_LEAST}",
            ".limits",
        ),
        rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) ||"
            " !quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name]))))",
            "a request is more than its limit",
            ".requests",
        ),
    ],
    "Toleration": [
        rule(
            "!(has(self.operator) && self.operator == 'Exists') || !has(self.value) || self.value == ''",
            "a value has no meaning for the operator Exists; leave it out",
            ".value",
        ),
        rule(
            "(has(self.operator) && self.operator == 'Exists') || (has(self.key) && self.key != '')",
            "a key is missing; give one, or operator Exists for every taint",
            ".key",
        ),
        rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect NoExecute",
            ".tolerationSeconds",
        ),
    ],
}
"""The rules for parts of a manifest, by the name of the model; `feasible` has the same rules."""


def holds_memory(limits: str, bytes_: str) -> str:
    """The expression that a memory limit, if `limits` has one, is at least the code's memory and `bytes_` together."""
    return (
        f"!({_MEMORY.format(limits)}) ||"
        f" quantity(string(self.{limits}limits['memory'])).asApproximateFloat() >= {LEAST_MEMORY}.0 + {bytes_}"
    )


def name_rules(kind: str) -> tuple[Object, ...]:
    """The rules for the names of objects of a kind."""
    return (
        rule(
            f"self.metadata.name.size() <= {MAX_NAME}",
            f"the name of a {kind} has at most {MAX_NAME} characters, so that names made from it fit",
        ),
        rule(
            f"self.metadata.name.matches('{NAME_PATTERN}')",
            f"the name of a {kind} is lower-case letters, digits and '-'; it starts with a letter and ends with a"
            " letter or digit",
        ),
    )


HISTORY_IN_MEMORY = rule(
    "(has(self.history.storage) && self.history.durability != 'memory') || self.history.retention.mode == 'none' || "
    + holds_memory(
        "publishers.resources.",
        "quantity(string(self.history.retention.bytes)).asApproximateFloat() * (has(self.publishers.segmentsPerPod) &&"
        " self.publishers.segmentsPerPod < self.segments ? double(self.publishers.segmentsPerPod) :"
        " has(self.publishers.segmentsPerPod) ? double(self.segments) : 1.0)",
    ),
    "limits.memory does not hold the history that each publisher keeps in memory (retention.bytes of each segment)",
    ".publishers.resources",
)
ROOT_RULES = (
    *name_rules("stream"),
    rule(
        f"self.metadata.name != '{DIRECT}' || self.spec.relays == 0",
        f"a stream called {DIRECT} has no relays: they would be called so too, and {DIRECT} means the publishers",
        ".spec.relays",
    ),
)


def definition(
    kind: str, short: str, columns: Sequence[Column], schema: Object, *, replicas: str, ready_replicas: str
) -> Object:
    """The CustomResourceDefinition of a kind; `replicas` and `ready_replicas`: paths for the subresource `scale`."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["epochal"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": form, "jsonPath": path, "description": text, "priority": priority}
                        for name, form, path, text, priority in columns
                    ],
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": replicas,
                            "statusReplicasPath": ready_replicas,
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }


def stream_crd() -> Object:
    """The definition of a Stream, JSON-safe."""
    return definition(
        KIND, "strm", _columns(), _root(), replicas=".spec.segments", ready_replicas=".status.readySegments"
    )


def _columns() -> list[Column]:
    ready, degraded = (f'.status.conditions[?(@.type=="{kind}")]' for kind in ("Ready", "Degraded"))
    return [
        ("Segments", "integer", ".spec.segments", "Segments that the stream has", 0),
        ("Serving", "integer", ".status.readySegments", "Segments whose publisher is ready", 0),
        ("Ready", "string", f"{ready}.status", "Whether every segment is served", 0),
        (
            "Degraded",
            "string",
            f"{degraded}.status",
            "Whether something is wrong, also while every segment is served",
            0,
        ),
        ("Frontier", "string", ".status.frontier", "The times that are not complete yet begin here", 0),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created", 0),
        ("Reason", "string", f"{ready}.reason", "Why it is ready, or not", 1),
        ("Trouble", "string", f"{degraded}.reason", "What is wrong; AsExpected where nothing is", 1),
        ("Encoding", "string", ".spec.payload.encoding", "How a record is encoded", 1),
        ("Times", "string", ".spec.time.shape", "What a time looks like", 1),
    ]


def _root() -> Object:
    spec = {
        **schema_of(StreamSpec, "What is declared about the stream."),
        "x-kubernetes-validations": [*SPEC_RULES, HISTORY_IN_MEMORY],
    }
    return root(
        KIND,
        "A stream of (time, record) pairs, served by publishers that the operator runs.",
        spec,
        _status(),
        ROOT_RULES,
    )


def root(kind: str, description: str, spec: Object, status: Object, rules: Sequence[Object]) -> Object:
    """The schema of whole objects of a kind."""
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": kind},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": list(rules),
    }


def schema_of(model: type[Fields], description: str) -> Object:
    """The structural schema of a model."""
    shown = model.model_json_schema(by_alias=True)
    return structural({**shown, "description": description}, shown["$defs"])


def structural(shown: Object, models: Object) -> Object:
    """Pydantic's schema as a structural schema: no references, no null, and the formats and lists of Kubernetes.

    `models`: the schemas that `shown` refers to. The keys have a fixed order, so that the definition changes only
    with its content.
    """
    shown = _resolved(shown, models)
    match shown:
        case {"format": ValueFormat.SCHEMA}:
            return {**_PAYLOAD_SCHEMA, "description": shown["description"]}
        case {"format": form}:
            shown |= _formatted(ValueFormat(form), shown)
        case {"properties": _}:
            shown["x-kubernetes-validations"] = MODEL_RULES.get(shown.get("title", ""))
            shown |= {"properties": _properties(shown, models), "description": shown["description"].split("\n")[0]}
            del shown["additionalProperties"]
        case {"type": "array"}:
            shown |= {"items": structural(shown["items"], models), "x-kubernetes-list-type": "atomic"}
        case {"type": "object"}:
            value = structural(shown["additionalProperties"], models)
            shown["additionalProperties"] = {"description": "A value.", **value}
        case {"type": "integer"}:
            shown["format"] = "int64"
        case {"type": "string"} if "enum" not in shown:
            # The API server estimates what a rule can cost, and refuses a rule on text of unbounded length.
            shown.setdefault("maxLength", MOST_TEXT)
    return {key: shown[key] for key in _KEYS if shown.get(key) is not None}


def _resolved(shown: Object, models: Object) -> Object:
    """`shown` without references and without `| None`: in an object, None is a missing field."""
    if "anyOf" in shown:
        [choice] = [one for one in shown["anyOf"] if one.get("type") != "null"]
        shown = {**choice, **{key: value for key, value in shown.items() if key not in ("anyOf", "default")}}
    if "$ref" in shown:
        shown = {**models[shown["$ref"].rpartition("/")[2]], **shown}
    return deepcopy(shown)


def _properties(shown: Object, models: Object) -> Object:
    """The properties, with names as in documents; an optional object gets an empty object as its default."""
    found = {}
    for name, field in shown["properties"].items():
        found[name] = structural(field, models)
        assert found[name]["description"], "every field says what it means"
        may_be_null = "anyOf" in field or name in shown.get("required", ())
        if found[name].get("type") == "object" and not may_be_null and name not in _NO_DEFAULT:
            found[name]["default"] = {}  # the API server then adds the defaults of its fields
    return found


def _formatted(form: ValueFormat, shown: Object) -> Object:
    """The keys of a text or an amount that differ from pydantic's schema; a key with the value None is removed."""
    plain: Object = {"type": "string", "format": None, "minimum": None, "maximum": None}
    either: Object = {**plain, "type": None, "x-kubernetes-int-or-string": True}
    match form:
        case ValueFormat.BYTES:
            return {**either, **_bytes(shown)}
        case ValueFormat.DURATION:
            return {**plain, **_duration(shown)}
        case ValueFormat.AMOUNT:
            return {**either, "pattern": f"^{AMOUNT_PATTERN}$", "maxLength": 40}
        case ValueFormat.NAMESPACE:
            return {**plain, "pattern": _NAMESPACE_PATTERN, "maxLength": 63}
        case ValueFormat.SHAPE:
            return {**plain, "pattern": _SHAPE_PATTERN, "minLength": 2, "maxLength": _MOST_SHAPE}
        case ValueFormat.NAME:
            return {**plain, "pattern": NAME_PATTERN, "maxLength": MAX_NAME}
        case ValueFormat.RELAY_HOST:
            return {**plain, "pattern": f"^{RELAY_HOST_PATTERN}$", "maxLength": 1024}
        case ValueFormat.ORIGIN:
            usual_port = rule(
                f"!self.matches('^({USUAL_PORT_PATTERN})$')", "browsers write no :80 after http, no :443 after https"
            )
            return {
                **plain,
                "pattern": f"^({ORIGIN_PATTERN})$",
                "maxLength": MOST_TEXT,
                "x-kubernetes-validations": [usual_port],
            }
        case ValueFormat.ACCOUNT:
            return {**plain, "pattern": f"^{ACCOUNT_PATTERN}$"}
        case ValueFormat.STORAGE_CLASS:
            return {**plain, "pattern": f"^{SUBDOMAIN_PATTERN}$"}
        case ValueFormat.TAINT_KEY:
            return {**plain, "pattern": f"^({LABEL_KEY_PATTERN})?$"}
        case ValueFormat.LABEL_VALUE:
            return {**plain, "pattern": f"^{LABEL_VALUE_PATTERN}$", "maxLength": 63}
        case ValueFormat.SCHEMA:
            raise AssertionError("the schema of a schema is written out")


def _bytes(shown: Object) -> Object:
    low, high = shown["minimum"], shown["maximum"]
    texts = format_bytes(low), format_bytes(high)
    as_number = f"self >= {low} && self <= {high}"
    as_text = (
        f"!quantity(self).isLessThan(quantity('{texts[0]}')) && !quantity(self).isGreaterThan(quantity('{texts[1]}'))"
    )
    bounds = rule(f"type(self) == int ? {as_number} : {as_text}", f"must be from {texts[0]} to {texts[1]}")
    return {
        "pattern": _BYTES_PATTERN,
        "maxLength": 32,
        "x-kubernetes-validations": [bounds],
        "default": format_bytes(shown["default"]) if "default" in shown else None,
    }


def _duration(shown: Object) -> Object:
    low, high = format_duration(shown["minimum"]), format_duration(shown["maximum"])
    bounds = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    return {
        "pattern": _DURATION_PATTERN,
        "minLength": 2,
        "maxLength": 40,
        "x-kubernetes-validations": [rule(bounds, f"must be from {low} to {high}")],
        "default": format_duration(shown["default"]) if "default" in shown else None,
    }


def _status() -> Object:
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
                "maxLength": MOST_TEXT,
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
                "maxLength": MOST_TEXT,
            },
            "notInEffect": {
                "type": "array",
                "description": "Fields that were given, and whose function is planned, or that the volumes are not as.",
                "maxItems": 32,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": MOST_TEXT},
            },
            "lostVolumes": {
                "type": "array",
                "description": "Claims that were lost, and with them the history of a segment; each for a day after it"
                " was made again.",
                "maxItems": MOST_LOST,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "description": "One claim.",
                    "required": ["name", "lostAt"],
                    "properties": {
                        "name": {"type": "string", "description": "The claim.", "maxLength": 253},
                        "lostAt": {"type": "string", "format": "date-time", "description": "When that was seen."},
                        "replacedAt": {
                            "type": "string",
                            "format": "date-time",
                            "description": "When it was made again, without the history.",
                        },
                    },
                },
            },
            "conditions": conditions("Ready, Progressing", "Degraded"),
        },
    }


def conditions(first: str, last: str) -> Object:
    """The schema of a status's conditions; `first` and `last`: the names of their types, for the description."""
    return {
        "type": "array",
        "description": f"{first} and {last}.",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": _condition(f"{first} or {last}."),
    }


def _condition(kinds: str) -> Object:
    return {
        "type": "object",
        "description": "One condition, as Kubernetes has them.",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "description": kinds, "maxLength": 316},
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
