"""What can be set, each with the reason of its default.

Tests and the process take one frozen value, and nothing else reads the environment.
"""

import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from epochal.client.catalog.url import catalog_url
from epochal.errors import ConfigError
from epochal.kube.access import own_namespace
from epochal.otel.sdk import Exports
from epochal.resources.cluster import OWN_ENVIRONMENT, RELAY_ENVIRONMENT, ClusterSettings
from epochal.service.settings import ByComma, Port, ServiceSettings

LEASE_NAME = "epochal-operator"


def _own_namespace() -> str:
    return own_namespace() or "default"


def own_operator() -> str:
    """The name that the environment gives the operator, also where the rest of its settings is not known."""
    prefix = "EPOCHAL_OPERATOR_LEASE_"
    namespace = os.environ.get(f"{prefix}NAMESPACE") or _own_namespace()
    return f"{namespace}/{os.environ.get(f'{prefix}NAME') or LEASE_NAME}"


def _own_name() -> str:
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{os.getpid()}"


def _environment(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except json.JSONDecodeError:
            raise ValueError('no JSON object of texts, such as {"OTEL_TRACES_SAMPLER": "always_on"}') from None
    if isinstance(value, Mapping):
        value = tuple(sorted(value.items()))
    if not isinstance(value, tuple) or not all(isinstance(text, str) for pair in value for text in pair):
        raise ValueError('no JSON object of texts, such as {"OTEL_TRACES_SAMPLER": "always_on"}')
    for name, _ in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name[:80]!r} is no name of a variable")
        if name in OWN_ENVIRONMENT:
            raise ValueError(f"{name} is set by each stream")
        if name in RELAY_ENVIRONMENT:
            raise ValueError(f"{name} is set by each relay")
    try:
        Exports.read(dict(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


Environment: TypeAlias = Annotated[tuple[tuple[str, str], ...], NoDecode, BeforeValidator(_environment)]
"""Names and values of variables, given as a JSON object."""


class OperatorSettings(ServiceSettings):
    """Read from `EPOCHAL_OPERATOR_*`; what is given to `read` wins. Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_OPERATOR_")
    service: ClassVar[str] = "operator"

    host: str = "0.0.0.0"
    """Everywhere: it answers probes and monitoring only, which come from outside its pod."""
    catalog: str
    """The URL of the catalog, as operator and pods reach it; no default, for streams would be declared there."""
    image: str = Field(min_length=1)
    """The image of the publisher; no default, for a wrong one starts pods that never run."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Kubernetes' own default for an image with a tag."""
    pull_secrets: ByComma = ()
    """Names of secrets for pulling the image, by comma; they must be in each stream's namespace."""
    network_policies: bool = True
    """Connections to publishers are limited by default, because nothing else limits them yet."""
    publisher_host: str = "0.0.0.0"
    """The address that publishers listen on: all of the pod's IPv4, since the network policy limits who may connect."""
    fixed_user: bool = True
    """Pods name their user; not where the platform chooses one for each namespace and refuses any other."""
    publisher_env: Environment = ()
    """More environment of publishers and relays, as a JSON object: where they send traces; the chart's `tracing`."""
    namespaces: ByComma = ()
    """The namespaces that are looked after, by comma; none: the whole cluster."""

    resync: float = Field(default=60.0, gt=0.0, le=3600.0)
    """How long an event that was lost may go unnoticed: everything is listed again as often."""
    watch_silence: float = Field(default=70.0, gt=0.0, le=3600.0)
    """A watch on which nothing comes for so long may be dead, and is opened again."""
    catalog_interval: float = Field(default=15.0, gt=0.0, le=3600.0)
    """How often all frontiers are read from the catalog; one list, whatever the number of streams."""
    frontier_interval: float = Field(default=10.0, ge=0.0, le=3600.0)
    """A frontier that moves is written to a stream's status no more often: each write goes to all watchers."""
    deletion_patience: float = Field(default=300.0, ge=0.0, le=86400.0)
    """How long the deletion of a stream waits for a catalog that is away; it is notified later then."""
    rollout_patience: float = Field(default=300.0, gt=0.0, le=86400.0)
    """How long a pod may take to become ready before it counts as stuck; recovering a long log takes a while."""
    rollout_streams: int = Field(default=3, ge=1, le=10_000)
    """Streams whose pods are replaced at once for a new image, once it serves one: as many may lose a pod to it."""
    relay_scale_up: float = Field(default=15.0, ge=0.0, le=86400.0)
    """How long more relays must be needed before they begin: longer than the catalog lists one that was killed."""
    relay_scale_down: float = Field(default=300.0, ge=0.0, le=86400.0)
    """How long fewer relays must have been enough before one ends: subscribers that come back soon need it again."""
    workers: int = Field(default=8, ge=1, le=256)
    """Streams reconciled at once: most of the time they wait for the API server, which must serve others too."""
    retry_first: float = Field(default=1.0, gt=0.0, le=60.0)
    """The pause before a stream that failed is tried again; it doubles up to `retry_last`."""
    retry_last: float = Field(default=60.0, gt=0.0, le=3600.0)
    """No longer than a resync, which tries again anyway."""
    request_timeout: float = Field(default=30.0, gt=0.0, le=300.0)
    """For one request to the API server; what takes longer has failed, or is looked at again."""

    lease_namespace: str = Field(default_factory=_own_namespace)
    """Where the lease is: the operator's own namespace."""
    lease_name: str = LEASE_NAME
    """The lease that the one acting operator holds; two that look after different namespaces need two."""
    lease_duration: float = Field(default=15.0, ge=1.0, le=300.0)
    """After so long without renewal another operator may act; the usual time of Kubernetes' own controllers."""
    identity: str = Field(default_factory=_own_name, min_length=1)
    """The holder of the lease: the pod, and the process in it."""

    port: Port = 8705
    """The port of /healthz and /readyz."""
    metrics_port: Port = 8706
    """The port of /metrics."""
    log_format: Literal["text", "json"] = "text"
    """`json` writes one object a line, for collectors of logs."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """By default each action is a line: what was done and why, and for a repair, who had changed the object."""

    @property
    def operator(self) -> str:
        """The operator's name, whichever process acts: that of its lease."""
        return f"{self.lease_namespace}/{self.lease_name}"

    @property
    def cluster(self) -> ClusterSettings:
        """What streams' objects are drawn with."""
        return ClusterSettings(
            image=self.image,
            catalog=self.catalog,
            pull_policy=self.pull_policy,
            pull_secrets=self.pull_secrets,
            network_policies=self.network_policies,
            listen=self.publisher_host,
            fixed_user=self.fixed_user,
            publisher_env=self.publisher_env,
        )

    @field_validator("catalog")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            return catalog_url(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
