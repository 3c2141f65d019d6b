"""The Stream manifest: one model for `epochal apply`, the catalog and the custom resource on a cluster.

It turns a document of any origin into a checked value, and reports all problems at once; and a checked value into the
normalised document that is stored and shown. The fields are in `spec`.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar

from pydantic import ConfigDict, ValidationError

from epochal.errors import ManifestError, Problem
from epochal.resources.problems import from_validation, plain_problems, show
from epochal.resources.schemas import Schema
from epochal.resources.spec import DIRECT, Fields, Metadata, StreamSpec

API_VERSION = "epochal.dev/v1alpha1"


MAX_MANIFEST = 64 * 1024
"""Bytes of a normalised manifest as JSON. It is bounded because every list of streams contains all manifests."""


def check_new(document: dict[str, Any]) -> None:
    """Check that a normalised document has at most `MAX_MANIFEST` bytes, and only text that can be sent as UTF-8.

    JSON can express half of a surrogate pair, which UTF-8 cannot. Raises `ManifestError` with each such field, or with
    the largest field of a document that is too large. A catalog checks only manifests that are new to it: those that an
    earlier version accepted stay valid.
    """
    fields = {
        f"{part}.{name}": json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for part in ("metadata", "spec")
        for name, value in document[part].items()
    }
    torn = [path for path, text in fields.items() if not text.isascii() and re.search("[\ud800-\udfff]", text)]
    if torn:
        problems = [Problem(path, "has half of a surrogate pair", "write the whole character") for path in torn]
        raise ManifestError("the manifest has a text that is not Unicode", problems)
    size = len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    if size <= MAX_MANIFEST:
        return
    bytes_of = {path: len(text.encode()) for path, text in fields.items()}
    largest = max(bytes_of, key=lambda path: bytes_of[path])
    reason = f"takes {bytes_of[largest]:,} of the manifest's {size:,} bytes as JSON; {MAX_MANIFEST:,} are allowed"
    raise ManifestError("the manifest is too large", [Problem(largest, reason, "make it shorter")])


class NotInEffect(NamedTuple):
    """A field that was given and accepted, but has no effect here: its path, its value, and why."""

    path: str
    value: Any
    note: str


OBJECT_UID = "epochal.dev/object-uid"
"""The annotation with the uid of the stream's Kubernetes object. The operator sets it: the stream is on a cluster."""

_ON_A_CLUSTER = {
    "spec.history.storage.storageClassName": "has a meaning for the volumes of a cluster only",
    "spec.publishers.advertise": "applies only to the pods of a cluster; here clients use the address listened on",
    "spec.publishers.resources": "has a meaning for the pods of a cluster only",
    "spec.publishers.nodeSelector": "has a meaning for the pods of a cluster only",
    "spec.publishers.tolerations": "has a meaning for the pods of a cluster only",
    "spec.publishers.topologySpread": "has a meaning for the pods of a cluster only",
}
"""Fields that are not in effect in local mode."""
_PLANNED = {
    "spec.watermark": "planned: marks and watermarks are not computed",
    "spec.access": "planned: service accounts are not checked; anyone who can connect can publish and subscribe",
}
"""Fields that have no effect yet, neither in local mode nor on a cluster."""
_OPTIONAL = {**_ON_A_CLUSTER, **_PLANNED}
_LOCAL = dict.fromkeys(
    ("spec.publishers.httpPort", "spec.relayHttpPort"), "has a meaning in local mode only; on a cluster ports are fixed"
)
"""Fields with a port for local mode; they have no effect on a cluster."""
_WORKING: dict[str, tuple[Any, ...]] = {
    "spec.access": ({"publish": [], "subscribe": []},),
    "spec.publishers.advertise": ("",),
    "spec.publishers.resources": ({},),
    "spec.publishers.nodeSelector": ({},),
    "spec.publishers.tolerations": ([],),
    "spec.publishers.topologySpread": (True,),
}
"""Values of such fields that already do what they say, or ask for nothing."""


M = TypeVar("M", bound=Fields)


def checked(
    model: type[M], document: object, namespace: str | None, between_fields: Callable[[object], list[Problem]]
) -> M:
    """The manifest in a document; `between_fields` finds the problems of several fields together.

    Raises `ManifestError` with every problem.
    """
    problems = plain_problems(document)
    if not problems and not isinstance(document, dict):
        problems = [Problem("document", f"must be a mapping of fields, not {show(document)}")]
    if problems:
        raise ManifestError("the manifest is not valid", problems)
    problems = between_fields(document)
    try:
        manifest = model.model_validate(_with_namespace(document, namespace))
    except ValidationError as error:
        raise ManifestError(_headline(model, document), from_validation(error, model) + problems) from None
    if problems:
        raise ManifestError(_headline(model, document), problems)
    return manifest


class StreamManifest(Fields):
    """A declared stream, valid as a whole."""

    model_config = ConfigDict(title="Stream")

    api_version: Literal["epochal.dev/v1alpha1"]
    kind: Literal["Stream"]
    metadata: Metadata
    spec: StreamSpec

    @classmethod
    def from_document(cls, document: object, *, namespace: str | None = None) -> Self:
        """Read and check a whole document; `namespace` is used if it has none.

        Raises `ManifestError` with all problems, each with its path, the reason and perhaps a hint.
        """
        return checked(cls, document, namespace, _between_fields)

    def to_document(self) -> dict[str, Any]:
        """The normalised document: JSON-safe, with defaults, except for fields that may have no effect."""
        document = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for path in _OPTIONAL:
            if not self._given(path):
                _remove(document, path.split("."))
        for field in ("labels", "annotations"):
            if not document["metadata"][field]:
                del document["metadata"][field]
        return document

    def not_in_effect(self) -> list[NotInEffect]:
        """The given fields that have no effect where this stream is, on a cluster or in local mode."""
        document = self.to_document()
        notes = {**_PLANNED, **_LOCAL} if self.object_uid else _OPTIONAL
        return [
            NotInEffect(path, value, note)
            for path, note in notes.items()
            if self._given(path) and (value := field_of(document, path)) not in _WORKING.get(path, ())
        ]

    @property
    def local_ports(self) -> dict[str, int]:
        """The ports that local mode must use for this stream, by the path of the field; empty on a cluster."""
        if self.object_uid:
            return {}
        given = zip(_LOCAL, (self.spec.publishers.http_port, self.spec.relay_http_port), strict=True)
        return {path: port for path, port in given if port is not None}

    @property
    def namespace(self) -> str:
        """The namespace; `default` when none was given."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """The name within the namespace."""
        return self.metadata.name

    @property
    def object_uid(self) -> str:
        """The uid of the stream's Kubernetes object; empty in local mode."""
        return self.metadata.annotations.get(OBJECT_UID, "")

    @property
    def qualified(self) -> str:
        """`namespace/name`, the stream's name everywhere but in a manifest."""
        return f"{self.namespace}/{self.name}"

    def _given(self, path: str) -> bool:
        part: Any = self
        for alias in path.split("."):
            field = next(name for name, info in type(part).model_fields.items() if alias in (info.alias, name))
            if field not in part.model_fields_set:
                return False
            part = getattr(part, field)
        return part is not None


def immutable_changes(old: StreamManifest, new: StreamManifest) -> list[Problem]:
    """The changed fields that must not change while a stream exists: time.shape, payload.*, segments."""
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("spec.time.shape", old.spec.time.shape_text, new.spec.time.shape_text),
        ("spec.payload.encoding", old.spec.payload.encoding, new.spec.payload.encoding),
        ("spec.segments", old.spec.segments, new.spec.segments),
    )
    hint = "delete the stream and apply it again, or give the new one another name"
    changes = [
        Problem(path, f"cannot change from {before} to {after} while the stream exists", hint)
        for path, before, after in pairs
        if before != after
    ]
    if old.spec.payload.schema_ != new.spec.payload.schema_:
        changes.append(Problem("spec.payload.schema", "cannot change while the stream exists", hint))
    return changes


def _with_namespace(document: Any, namespace: str | None) -> Any:
    metadata = document.get("metadata")
    if namespace is None or not isinstance(metadata, dict) or "namespace" in metadata:
        return document
    return {**document, "metadata": {**metadata, "namespace": namespace}}


def _headline(model: type[Fields], document: object) -> str:
    name, kind = field_of(document, "metadata.name"), str(model.model_config.get("title", "")).lower()
    return (
        f"the manifest of {kind} '{name[:60]}' is not valid" if isinstance(name, str) else "the manifest is not valid"
    )


def _between_fields(document: object) -> list[Problem]:
    """Problems of two fields together, and of the payload's schema.

    It reads the raw document, so that these are reported together with the problems of single fields.
    """
    shape = field_of(document, "spec.time.shape")
    problems = []
    if (
        field_of(document, "spec.watermark.noteTime") == "frontier"
        and isinstance(shape, str)
        and shape.strip() != "int"
    ):
        reason = f"cannot be frontier when times have the shape {shape[:40]}"
        problems.append(
            Problem("spec.watermark.noteTime", reason, "frontier needs time.shape int; use manual or wallclock")
        )
    durability = field_of(document, "spec.history.durability")
    if durability in ("batch", "interval") and field_of(document, "spec.history.storage") is None:
        reason = f"{durability} needs spec.history.storage"
        problems.append(Problem("spec.history.durability", reason, "storage: {size: 10Gi}, or durability: memory"))
    relays = field_of(document, "spec.relays")
    if field_of(document, "metadata.name") == DIRECT and isinstance(relays, int) and relays > 0:
        reason = f"would be called {DIRECT} as their stream, which means the publishers"
        problems.append(Problem("spec.relays", reason, "choose another name for the stream, or leave relays out"))
    problems += _port_problems(document)
    schema = field_of(document, "spec.payload.schema")
    if field_of(document, "spec.payload.encoding") == "bytes" and schema is not None:
        problems.append(Problem("spec.payload.schema", "has no meaning for encoding bytes", "leave it out"))
    elif isinstance(schema, dict):  # that it is one is checked with the other kinds of values
        problems += _schema_problems(schema)
    return problems


def _port_problems(document: object) -> list[Problem]:
    """Problems of ports: a port can be given only where a single process listens on it."""
    segments, relays = (field_of(document, path) for path in ("spec.segments", "spec.relays"))
    packed = field_of(document, "spec.publishers.segmentsPerPod")
    port, relay_port = (field_of(document, path) for path in _LOCAL)
    problems = []
    if port is not None and isinstance(packed, int) and packed < (segments if isinstance(segments, int) else 1):
        reason = "is one port, and the stream has several publishers"
        problems.append(Problem("spec.publishers.httpPort", reason, "leave out segmentsPerPod, or the port"))
    if relay_port is not None and relays != 1:
        reason = f"is the port of one relay, not of {0 if relays is None else relays}"
        problems.append(Problem("spec.relayHttpPort", reason, "set relays: 1, or leave the port out"))
    elif relay_port is not None and relay_port == port:
        problems.append(Problem("spec.relayHttpPort", "is publishers.httpPort too", "choose another port for one"))
    return problems


def _schema_problems(schema: object) -> Sequence[Problem]:
    try:
        Schema.parse(schema, "spec.payload.schema")
    except ManifestError as error:
        return error.problems
    return ()


def _remove(document: dict[str, Any], parts: Sequence[str]) -> None:
    for part in parts[:-1]:
        document = document.get(part, {})
    document.pop(parts[-1], None)


def field_of(document: object, path: str) -> Any:
    """The value at a path such as `spec.time.shape` of a raw document; None if there is none."""
    value: Any = document
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
