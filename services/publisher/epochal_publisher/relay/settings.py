"""The settings of a relay, each with the reason for its default.

What the stream's manifest declares is not a setting: it comes from the catalog.
"""

import secrets

from pydantic import Field, field_validator

from epochal.client.catalog.relay_choice import Via
from epochal.protocol.messages import MAX_ID, is_id
from epochal.protocol.publisher.channels import MAX_CHANNELS
from epochal.protocol.relay.segment import RelayLimits
from epochal.protocol.relay.union import UnionTimes
from epochal.service.settings import Port
from epochal_publisher.relay.epochs.settings import RelayHttpSettings
from epochal_publisher.settings import CatalogUrl
from epochal_publisher.sockets.peer_limits import SocketTimeouts


class RelaySettings(RelayHttpSettings):
    """Read from `EPOCHAL_RELAY_*`; arguments of `read` win. Durations in seconds, sizes in bytes."""

    catalog: CatalogUrl = ""
    """The URL of the catalog; empty for EPOCHAL_CATALOG."""
    stream: str = Field(pattern=r"^[^/]+/[^/]+$")
    """`namespace/name` of the one stream that this process relays."""
    name: str = "relay"
    """The relay's name, by which subscribers ask for it; several processes may share it."""
    id: str = Field(default="", validate_default=True)
    """The id of this process; in a cluster the pod's name. By this id a relay sees that it would follow itself."""
    upstream: str = "direct"
    """`direct` follows the publishers, any other name the relays of that name."""
    advertise: str = ""
    """The host that clients use; empty for `host`."""
    events_port: Port = 0
    requests_port: Port = 0
    http_port: Port = 0
    capacity: int = Field(default=1000, ge=1)
    """Subscribers of a segment at most; further ones are sent on to other relays, or to the publisher."""
    buffer_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Bytes of events of all segments, for subscribers that come back or missed some; publishers have older events."""
    max_passed_on: int = Field(default=64, ge=1, le=1024)
    """Requests for history that are forwarded at once for each segment; each is a connection upstream."""
    max_channels: int = Field(default=MAX_CHANNELS, ge=1, le=1024)
    """Filters of a segment that get a channel of their own; later ones share one that carries more (F12)."""
    filter_linger: float = Field(default=30.0, ge=0.0, le=3600.0)
    """How long topics are still asked for after their last subscriber has left; most come back."""
    tick: float = Field(default=0.1, gt=0.0, le=1.0)
    """How late a time-out may be noticed."""
    discard_ttl: float = Field(default=60.0, gt=0.0)
    """How long a peer that broke the protocol is ignored; by then the library has closed its connection."""
    max_discarded: int = Field(default=1024, ge=1)
    """Peers ignored at once; the oldest is forgotten first."""
    handshake_timeout: float = Field(default=2.0, ge=0.01, le=60.0)
    """How long a connection may take to say that it speaks ZeroMQ; on a network it takes milliseconds."""
    heartbeat_interval: float = Field(default=10.0, ge=0.01, le=60.0)
    """Time between ZeroMQ's own heartbeats, which show whether a quiet peer is gone."""
    heartbeat_timeout: float = Field(default=30.0, ge=0.01, le=600.0)
    """How long a peer may answer no heartbeat before it is disconnected; longer than busy applications pause."""
    lookup_wait: float = Field(default=60.0, ge=0.0, le=600.0)
    """How long to wait for the stream's publishers before the process ends, and is started again."""
    drain_timeout: float = Field(default=3.0, ge=0.0)
    """How long the catalog and slow peers may each delay a stop."""

    @property
    def patience(self) -> SocketTimeouts:
        """How long the sockets wait for peers."""
        return SocketTimeouts(self.handshake_timeout, self.heartbeat_interval, self.heartbeat_timeout)

    @property
    def via(self) -> Via:
        """How this relay looks for its upstream, which is never itself."""
        if self.upstream == "direct":
            return Via("direct")
        return Via("relay", self.upstream, exclude=frozenset((self.id,)))

    def of_segment(self, segments: int) -> RelayLimits:
        """The limits of one segment, where the relay has so many."""
        return RelayLimits(
            capacity=self.capacity,
            memory=self.buffer_bytes // segments,
            max_channels=self.max_channels,
            max_passed_on=self.max_passed_on,
            union=UnionTimes(linger=self.filter_linger),
        )

    def known_hosts(self) -> tuple[str, ...]:
        """The names of `hosts`, with the name that clients get."""
        return (*self.hosts, self.advertise) if self.advertise else self.hosts

    @field_validator("id")
    @classmethod
    def _instance(cls, value: str) -> str:
        return value or f"relay-{secrets.token_hex(4)}"

    @field_validator("name", "id", "upstream")
    @classmethod
    def _id(cls, value: str) -> str:
        if not is_id(value):
            raise ValueError(f"must be 1 to {MAX_ID} printable characters")
        return value
