"""The client of the Kubernetes API, and a cluster from outside: the user's credentials, and ways through it to pods.

The client of streams knows nothing of Kubernetes: it takes the address of a catalog and a function that leads to
publishers, and `Cluster` gives it both. The `kubernetes` package is loaded when a cluster is opened.
"""

from epochal.kube.access import Choice, context_namespace
from epochal.kube.cluster import Cluster
from epochal.kube.user_api import DeclaredObjects, Right

__all__ = ["Choice", "Cluster", "DeclaredObjects", "Right", "context_namespace"]
