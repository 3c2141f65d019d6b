"""Reads streams that an earlier release stored, some of which this one would not take any more.

Apart from the state because it is about the past: what is declared now has been checked before it comes there. One old
stream must not keep the catalog from starting.
"""

from dataclasses import replace
from typing import Any

from epochal.errors import ManifestError
from epochal.resources import StreamManifest
from epochal_catalog.errors import StoredStreamError
from epochal_catalog.records import Json, StreamRecord

_SCHEMA = "spec.payload.schema"
_OLD = "of a form that is no longer read: nothing is compared with it; declare its fields in a new stream"


def readable(record: StreamRecord) -> tuple[StreamRecord, StreamManifest, list[dict[str, Json]]]:
    """A stored stream, its manifest, and what of it is not in effect.

    A payload schema that is not a list of fields (it could be any object once) is taken out, and told as not in effect;
    the disk keeps it until the stream is applied again. Raises `StoredStreamError` for all else that cannot be read.
    """
    try:
        manifest, old = StreamManifest.from_document(record.manifest), []
    except ManifestError as error:
        if not all(problem.path.startswith(_SCHEMA) for problem in error.problems):
            raise StoredStreamError(
                f"the stored stream {record.namespace}/{record.name} cannot be read by this release; start the one that"
                f" wrote it, or delete the stream there: {error}"
            ) from error
        document, schema = _without_schema(record.manifest)
        record, manifest = replace(record, manifest=document), StreamManifest.from_document(document)
        old = [{"path": _SCHEMA, "value": schema, "note": _OLD}]
    return record, manifest, [*old, *(item._asdict() for item in manifest.not_in_effect())]


def _without_schema(document: dict[str, Json]) -> tuple[dict[str, Json], Any]:
    spec = document["spec"]
    payload = dict(spec["payload"])
    schema = payload.pop("schema")
    return {**document, "spec": {**spec, "payload": payload}}, schema
