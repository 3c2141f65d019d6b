"""A cluster from outside: its API server with the user's own credentials, and ways through it to pods.

Apart from the client, which knows nothing of Kubernetes: it takes the address of a catalog and a function that leads to
publishers, and `Cluster` gives it both. The library that reads kubeconfig files is loaded when a cluster is opened.
"""

from epochal.kube.access import Choice, context_namespace
from epochal.kube.cluster import Cluster
from epochal.kube.rights import Right
from epochal.kube.streams import Streams

__all__ = ["Choice", "Cluster", "Right", "Streams", "context_namespace"]
