"""Names that only a cluster's own DNS knows, and what they stand for.

An address that is none of these is used as it is, so that a publisher with an external one
(`spec.publishers.advertise`) is reached directly.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

_ENDS = (["svc"], ["svc", "cluster", "local"])
"""We never write more than the first ourselves, and people copy the usual full form."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """A port of one pod."""

    namespace: str
    pod: str
    port: int

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod} port {self.port}"


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service: that of any of its pods that is ready."""

    namespace: str
    service: str
    port: int

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.service} port {self.port}"


Target = PodPort | ServicePort


def in_cluster(address: str) -> Target | None:
    """What `SCHEME://HOST:PORT` stands for in a cluster; None when its host is no name of the cluster's own.

    >>> in_cluster("tcp://flights-0.flights.demo.svc:8701")
    PodPort(namespace='demo', pod='flights-0', port=8701)
    >>> in_cluster("http://epochal-catalog.epochal.svc.cluster.local:8700")
    ServicePort(namespace='epochal', service='epochal-catalog', port=8700)
    >>> in_cluster("tcp://flights-0.example.com:8701") is None
    True
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return None
    labels = host.removesuffix(".").split(".")
    end = next((end for end in _ENDS if labels[-len(end) :] == end), None)
    if not port or end is None or not all(labels):
        return None
    match labels[: -len(end)]:
        case [pod, _, namespace]:
            return PodPort(namespace, pod, port)
        case [service, namespace]:
            return ServicePort(namespace, service, port)
        case _:
            return None


def local_form(address: str, port: int) -> str:
    """The same scheme and path at a port of this machine.

    >>> local_form("tcp://flights-0.flights.demo.svc:8701", 40001)
    'tcp://127.0.0.1:40001'
    """
    parts = urlsplit(address)
    return parts._replace(netloc=f"127.0.0.1:{port}").geturl()
