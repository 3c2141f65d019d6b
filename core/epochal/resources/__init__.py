"""What users declare: the Stream manifest, and the plan that makes it so.

The client, the services, local mode and the operator share this one model and this one planner.
"""

from epochal.errors import ManifestError, Problem
from epochal.resources.documents import load_manifests
from epochal.resources.manifest import API_VERSION, OBJECT_UID, NotInEffect, StreamManifest, immutable_changes
from epochal.resources.names import DEFAULT_NAMESPACE, parse_stream_name
from epochal.resources.plan import Action, DesiredStream, Keep, ObservedPublisher, PlannedPublisher, Start, Stop, plan
from epochal.resources.spec import StreamSpec

__all__ = [
    "API_VERSION",
    "DEFAULT_NAMESPACE",
    "OBJECT_UID",
    "Action",
    "DesiredStream",
    "Keep",
    "ManifestError",
    "NotInEffect",
    "ObservedPublisher",
    "PlannedPublisher",
    "Problem",
    "Start",
    "Stop",
    "StreamManifest",
    "StreamSpec",
    "immutable_changes",
    "load_manifests",
    "parse_stream_name",
    "plan",
]
