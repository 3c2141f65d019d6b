"""The settings of a publisher, each with the reason for its default.

Tests and the process use one frozen value, and no other module reads the environment. What the stream's manifest
declares (retention, time-outs, buffers) is not a setting: it comes from the catalog.
"""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, field_validator
from pydantic_settings import SettingsConfigDict

from epochal.client.catalog.url import catalog_url
from epochal.errors import ConfigError
from epochal.protocol.messages import MAX_ID, is_id
from epochal.protocol.publisher.channels import MAX_CHANNELS
from epochal.protocol.wire import MAX_PAYLOAD
from epochal.service.origins import check_cors_origins
from epochal.service.settings import ByComma, Port, ServiceSettings
from epochal_publisher.callback_targets import Targets
from epochal_publisher.sockets.peer_limits import SocketTimeouts


def _url(value: str) -> str:
    try:
        return catalog_url(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


CatalogUrl = Annotated[str, AfterValidator(_url)]
"""The URL of a catalog; what is empty becomes that of EPOCHAL_CATALOG."""


class Settings(ServiceSettings):
    """Read from `EPOCHAL_PUBLISHER_*`; arguments of `read` win. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_PUBLISHER_")
    service: ClassVar[str] = "publisher"

    catalog: CatalogUrl
    """The URL of the catalog. No default, because a wrong one would register the publisher at another catalog."""
    stream: str = Field(pattern=r"^[^/]+/[^/]+$")
    """`namespace/name` of the one stream that this process serves."""
    segments: ByComma = Field(min_length=1)
    """The segments that this process owns, by comma."""
    publisher: str
    """The name of this publisher; a process that replaces another has the same name."""
    data: Path | None = None
    """The directory of the logs on disk, for streams that have storage. Each log has one owner at a time."""
    trust_file_system: str = ""
    """A type of FUSE file system, such as `fuse.mergerfs`, that the logs may be on; network ones never are."""
    sync_interval: float = Field(default=1.0, gt=0.0, le=60.0)
    """Seconds of appends that a crash of the machine may lose under the policy `interval`."""
    log_retry: float = Field(default=0.5, gt=0.0, le=60.0)
    """How long to wait before a write is tried again on a full disk, or before a log is opened that another owns."""
    log_file_bytes: int = Field(default=64 * 2**20, ge=64 * 1024)
    """Size at which the next log file begins: retention removes whole files, and a restart reads the last one."""
    log_memory: int = Field(default=64 * 2**20, ge=2**20)
    """How much of each segment's log is kept in memory too, for readers that are nearly up to date."""
    advertise: str = ""
    """The host that clients use; empty for `host`."""
    events_port: Port = 0
    requests_port: Port = 0
    ingest_port: Port = 0
    http_port: Port = 0
    """Port 0 takes a free one: several publishers share a machine, and clients learn addresses from the catalog."""
    max_payload: int = Field(default=MAX_PAYLOAD, ge=1024, le=MAX_PAYLOAD)
    """The largest append that is taken. No subscriber would read one larger than the protocol allows."""
    window: int = Field(default=8 * 2**20, ge=64 * 1024)
    """Bytes that one writer may have unacknowledged: many times what a round trip on loopback needs."""
    renew_interval: float = Field(default=1.0, gt=0.0, le=60.0)
    """How old the frontier may be from which the next owner starts (E11 horizon)."""
    tick: float = Field(default=0.1, gt=0.0, le=1.0)
    """How late a time-out may be noticed."""
    stall: float = Field(default=1.0, gt=0.0)
    """A longer pause of the loop is a stall: the lease must be confirmed, and silence is counted from then (E8)."""
    discard_ttl: float = Field(default=60.0, gt=0.0)
    """How long a peer that broke the protocol is ignored; by then the library has closed its connection."""
    max_channels: int = Field(default=MAX_CHANNELS, ge=1, le=1024)
    """Filters of a segment that get a channel of their own; later ones share one that carries more (F12)."""
    max_discarded: int = Field(default=1024, ge=1)
    """Peers ignored at once; the oldest is forgotten first."""
    handshake_timeout: float = Field(default=2.0, ge=0.01, le=60.0)
    """How long a connection may take to say that it speaks ZeroMQ; on a network it takes milliseconds."""
    heartbeat_interval: float = Field(default=10.0, ge=0.01, le=60.0)
    """Time between ZeroMQ's own heartbeats, which show whether a quiet peer is gone."""
    heartbeat_timeout: float = Field(default=30.0, ge=0.01, le=600.0)
    """How long a peer may answer no heartbeat before it is disconnected; longer than busy applications pause."""
    drain_timeout: float = Field(default=3.0, ge=0.0)
    """How long the catalog, the disk and slow peers may each delay a stop."""
    superseded_mark: Path | None = None
    """A file that a superseded publisher writes, so that it is not started again: a new start would take over again."""

    max_wait: float = Field(default=60.0, gt=0.0, le=600.0)
    """The longest that a request for events may wait over HTTP; proxies give up after about as long."""
    max_readers: int = Field(default=64, ge=1)
    """Answers with events under way at once over HTTP: each may hold `answer_bytes` a few times over."""
    answer_bytes: int = Field(default=2**20, ge=1024, le=2**26)
    """Bytes of events in one answer, or in one delivery of a web-hook; a larger event goes alone."""
    sse_heartbeat: float = Field(default=10.0, gt=0.0, le=300.0)
    """The longest silence on server-sent events; many proxies close a silent connection after a minute."""
    cors_origins: Annotated[ByComma, AfterValidator(check_cors_origins)] = ()
    """The origins whose web pages may read events, by comma, or `*`. By default none: browsers let no page read."""
    webhook_targets: str = ""
    """Where web-hooks may go, by comma. By default nowhere: else any client could send requests into this network."""
    webhook_timeout: float = Field(default=10.0, gt=0.0, le=300.0)
    """For one delivery of a web-hook: a receiver should accept it first, and work on it later."""
    webhook_give_up: float = Field(default=300.0, gt=0.0)
    """How long deliveries may fail; a receiver that comes back later asks for what it missed."""
    max_webhooks: int = Field(default=64, ge=1)
    """Web-hooks at once; each may hold `answer_bytes` a few times over."""

    max_body: int = Field(default=64 * 1024, ge=1024, le=2**26)
    """No HTTP request to a publisher needs a large body."""
    max_connections: int = Field(default=256, ge=1)
    """Probes, monitoring, people, and up to `max_readers` clients; most data goes over ZeroMQ."""
    max_connections_per_address: int = Field(default=128, ge=1)
    """Half of all, so that one machine leaves room for others."""
    port_retries: int = Field(default=0, ge=0, le=60)
    """No retries: a port that is in use is reported at once, and a free one (0) never is in use."""

    @property
    def patience(self) -> SocketTimeouts:
        """How long the sockets wait for peers."""
        return SocketTimeouts(self.handshake_timeout, self.heartbeat_interval, self.heartbeat_timeout)

    def known_hosts(self) -> tuple[str, ...]:
        """The names of `hosts`, and the one that clients get."""
        return (*self.hosts, self.advertise) if self.advertise else self.hosts

    @field_validator("publisher")
    @classmethod
    def _id(cls, value: str) -> str:
        if not is_id(value):
            raise ValueError(f"must be 1 to {MAX_ID} printable characters")
        return value

    @field_validator("webhook_targets")
    @classmethod
    def _targets(cls, value: str) -> str:
        Targets.parse(value)
        return value
