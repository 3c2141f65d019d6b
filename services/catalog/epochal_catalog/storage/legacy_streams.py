"""Reads streams that an earlier release stored, even when this release would refuse to declare them.

Separate from the state because it is only about old records: streams that are declared now were checked first. One old
stream must not keep the catalog from starting.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from epochal.errors import ManifestError
from epochal.resources import StreamManifest
from epochal_catalog.domain.records import Json, StreamRecord
from epochal_catalog.errors import StoredStreamError

_OLD = {
    "spec.payload.schema": "of a form that is no longer read: nothing is compared with it; declare its fields in a new"
    " stream",
    "spec.publishers.resources": "of a form that is no longer read: requests and limits; apply the stream again",
    "spec.publishers.tolerations": "of a form that is no longer read: as in a pod; apply the stream again",
}
"""Fields that earlier releases did not check, and the note that is shown for an old value."""


def readable(record: StreamRecord) -> tuple[StreamRecord, StreamManifest, list[dict[str, Json]]]:
    """A stored stream, its manifest, and the fields that are not in effect.

    A field of `_OLD` that does not have today's form is taken out and listed as not in effect; the disk keeps it until
    the stream is applied again. Raises `StoredStreamError` for everything else that cannot be read.
    """
    old: list[dict[str, Json]] = []
    try:
        manifest = StreamManifest.from_document(record.manifest)
    except ManifestError as error:
        wrong = {next((path for path in _OLD if problem.path.startswith(path)), "") for problem in error.problems}
        if "" in wrong:
            raise StoredStreamError(
                f"the stored stream {record.namespace}/{record.name} cannot be read by this release; start the one that"
                f" wrote it, or delete the stream there: {error}"
            ) from error
        document = record.manifest
        for path in sorted(wrong):
            document, value = _without(document, path.split("."))
            old.append({"path": path, "value": value, "note": _OLD[path]})
        record, manifest = replace(record, manifest=document), StreamManifest.from_document(document)
    return record, manifest, [*old, *(item._asdict() for item in manifest.not_in_effect())]


def _without(document: dict[str, Json], path: Sequence[str]) -> tuple[dict[str, Json], Any]:
    """A copy without the field at `path`, and the field."""
    first, *rest = path
    if not rest:
        return {name: value for name, value in document.items() if name != first}, document[first]
    inner, value = _without(document[first], rest)
    return {**document, first: inner}, value
