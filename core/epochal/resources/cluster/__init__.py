"""A stream's objects on a Kubernetes cluster: drawn, compared, planned and reported, without I/O.

The operator carries out what is decided here.
"""

from epochal.resources.cluster.children import check_drawable, children_of
from epochal.resources.cluster.planner import (
    Apply,
    ClusterAction,
    ClusterPlan,
    Create,
    Delete,
    Whose,
    plan_cluster,
    whose,
)
from epochal.resources.cluster.pods import OWN_ENVIRONMENT
from epochal.resources.cluster.relay import RELAY_ENVIRONMENT
from epochal.resources.cluster.status import Seen, status_of
from epochal.resources.cluster.stream import ClusterSettings, ClusterStream

__all__ = [
    "OWN_ENVIRONMENT",
    "RELAY_ENVIRONMENT",
    "Apply",
    "ClusterAction",
    "ClusterPlan",
    "ClusterSettings",
    "ClusterStream",
    "Create",
    "Delete",
    "Seen",
    "Whose",
    "check_drawable",
    "children_of",
    "plan_cluster",
    "status_of",
    "whose",
]
