"""What can be set, each with the reason of its default.

Apart from the entry point so that tests and the process take one frozen value and nobody else reads the environment.
What the stream's manifest declares (retention, time-outs, buffers) is not set here: it comes from the catalog.
"""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from epochal.client.catalog.catalog import catalog_url
from epochal.errors import ConfigError
from epochal.protocol.wire import MAX_PAYLOAD
from epochal.service.settings import ByComma, ServiceSettings
from epochal_publisher.http.callback_targets import Targets
from epochal_publisher.sockets.socket_timeouts import Patience

Port = Annotated[int, Field(ge=0, le=65535)]
"""0 takes a free port: several publishers share a machine, and clients learn addresses from the catalog."""


class Settings(ServiceSettings):
    """Read from `EPOCHAL_PUBLISHER_*`; what is given to `read` wins. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_PUBLISHER_")
    service: ClassVar[str] = "publisher"

    catalog: str
    """The URL of the catalog; no default, for a wrong one would register a publisher in a strange place."""
    stream: str = Field(pattern=r"^[^/]+/[^/]+$")
    """`namespace/name` of the one stream that this process serves."""
    segments: ByComma = Field(min_length=1)
    """The segments that this process owns, by comma."""
    publisher: str = Field(min_length=1, max_length=253)
    """The name of this publisher; a process that replaces another has the same."""
    data: Path | None = None
    """The directory of the logs on disk, for streams that have storage; one at a time owns each log in it."""
    trust_file_system: str = ""
    """A type of FUSE file system, such as `fuse.mergerfs`, that the logs may be on; network ones never are."""
    sync_interval: float = Field(default=1.0, gt=0.0, le=60.0)
    """How much a crash of the machine may cost under the policy `interval`."""
    log_retry: float = Field(default=0.5, gt=0.0, le=60.0)
    """How long to wait, on a full disk, before the same is written again."""
    log_file_bytes: int = Field(default=64 * 2**20, ge=64 * 1024)
    """Where a log file ends and the next begins: retention removes whole ones, and a restart reads the last one."""
    log_memory: int = Field(default=64 * 2**20, ge=2**20)
    """How much of a log is kept in memory as well, a segment, for readers that are nearly up to date."""
    advertise: str = ""
    """The host that clients are told; empty for `host`."""
    events_port: Port = 0
    requests_port: Port = 0
    ingest_port: Port = 0
    http_port: Port = 0
    max_payload: int = Field(default=MAX_PAYLOAD, ge=1024, le=MAX_PAYLOAD)
    """The largest append that is taken; more than the protocol allows, no subscriber would read."""
    window: int = Field(default=8 * 2**20, ge=64 * 1024)
    """Bytes that one writer may have unacknowledged: a loopback round trip's worth many times over."""
    renew_interval: float = Field(default=1.0, gt=0.0, le=60.0)
    """How old a frontier a successor may start from (E11)."""
    tick: float = Field(default=0.1, gt=0.0, le=1.0)
    """How late a time-out may be noticed."""
    stall: float = Field(default=1.0, gt=0.0)
    """A pause of the loop after which ownership and silence are judged anew (E8, E12)."""
    discard_ttl: float = Field(default=60.0, gt=0.0)
    """How long a peer that broke the protocol is ignored; its connection has been cut by then."""
    max_discarded: int = Field(default=1024, ge=1)
    """Peers ignored at once; the oldest is forgotten first."""
    handshake_timeout: float = Field(default=2.0, ge=0.01, le=60.0)
    """How long a connection may take to say that it speaks ZeroMQ; on a network it takes milliseconds."""
    heartbeat_interval: float = Field(default=10.0, ge=0.01, le=60.0)
    """ZeroMQ's own heartbeats, which tell a peer that is gone from one that is quiet."""
    heartbeat_timeout: float = Field(default=30.0, ge=0.01, le=600.0)
    """How long a peer may answer no heartbeat before it is cut: above the pauses of busy applications."""
    drain_timeout: float = Field(default=3.0, ge=0.0)
    """How long the catalog and slow peers may hold up a stop, each."""
    superseded_mark: Path | None = None
    """A file that a superseded publisher leaves, for where whatever ends is started again: such a start would win."""

    max_wait: float = Field(default=60.0, gt=0.0, le=600.0)
    """The longest that a question for events waits over HTTP; proxies give up after as much."""
    max_readers: int = Field(default=64, ge=1)
    """Answers with events under way at once over HTTP: each may hold `answer_bytes` a few times over."""
    answer_bytes: int = Field(default=2**20, ge=1024, le=2**26)
    """Bytes of events in one answer, or in one delivery of a web-hook; a larger event goes alone."""
    sse_heartbeat: float = Field(default=10.0, gt=0.0, le=300.0)
    """How long a proxy may see nothing of server-sent events; many cut after a minute."""
    webhook_targets: str = ""
    """Where web-hooks may go, by comma; nowhere: else anybody could have requests sent into this network."""
    webhook_timeout: float = Field(default=10.0, gt=0.0, le=300.0)
    """For one delivery of a web-hook: a receiver takes it, and works on it later."""
    webhook_give_up: float = Field(default=300.0, gt=0.0)
    """How long deliveries may fail; a receiver that is back asks for what it missed."""
    max_webhooks: int = Field(default=64, ge=1)
    """Web-hooks at once; each may hold `answer_bytes` a few times over."""

    max_body: int = Field(default=64 * 1024, ge=1024, le=2**26)
    """Nothing that a publisher is asked over HTTP has a body worth mentioning."""
    max_connections: int = Field(default=256, ge=1)
    """Probes, monitoring, people, and the clients of `max_readers`; most data takes other ways."""
    max_connections_per_address: int = Field(default=128, ge=1)
    """Half of all, so that one machine leaves room for others."""
    port_retries: int = Field(default=0, ge=0, le=60)
    """None: who names a port of a publisher is told at once, and free ports are never taken."""

    @property
    def patience(self) -> Patience:
        """How long peers are waited for."""
        return Patience(self.handshake_timeout, self.heartbeat_interval, self.heartbeat_timeout)

    @field_validator("webhook_targets")
    @classmethod
    def _targets(cls, value: str) -> str:
        Targets.parse(value)
        return value

    @field_validator("catalog")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            return catalog_url(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
