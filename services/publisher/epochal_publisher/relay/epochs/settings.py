"""The settings of a relay's HTTP side, each with the reason for its default."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from epochal.service.origins import check_cors_origins
from epochal.service.settings import ByComma, ServiceSettings


class RelayHttpSettings(ServiceSettings):
    """Read from `EPOCHAL_RELAY_*`; arguments of `read` win. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_RELAY_")
    service: ClassVar[str] = "relay"

    max_line: ClassVar[int] = 32_760
    """A filter of 4 KiB and a cursor with it, 6 KiB, are three times as long where most bytes are percent-encoded."""
    max_wait: float = Field(default=60.0, gt=0.0, le=600.0)
    """The longest that a request for epochs may wait; proxies give up after about as long."""
    max_readers: int = Field(default=1024, ge=1)
    """Answers with epochs under way at once. Each costs a connection, with up to 192 KiB that are not read yet."""
    max_readers_per_address: int = Field(default=256, ge=1)
    """Answers under way at once for one address; behind a proxy all readers have the same one."""
    max_feeds: int = Field(default=64, ge=1)
    """Filters that are followed at once: each is a subscription to all segments."""
    max_feeds_per_address: int = Field(default=16, ge=1)
    """The same for one address: a quarter, so that no client uses up all filters."""
    feed_timeout: float = Field(default=60.0, gt=0.0, le=3600.0)
    """How long a filter without readers is followed: readers that poll come back, and then need no history."""
    max_catch_ups: int = Field(default=8, ge=1)
    """Readers that read history at once: each has a subscription, which may hold the unfinished epochs of a stream."""
    subscription_bytes: int = Field(default=128 * 2**20, ge=2**20)
    """Bytes that all subscriptions of readers hold: epochs that are not complete, or complete and not taken yet."""
    ring_bytes: int = Field(default=64 * 2**20, ge=64 * 1024)
    """Bytes of the newest epochs of all filters, encoded, that are kept; a larger epoch is kept alone.

    As much again can be on its way to readers who take it slowly; beyond that, the slowest of them are disconnected.
    """
    answer_bytes: int = Field(default=2**20, ge=1024, le=2**26)
    """Bytes of epochs in one answer as JSON lines; a larger epoch goes alone."""
    join_timeout: float = Field(default=10.0, gt=0.0, le=300.0)
    """How long a reader waits for all segments to answer. Segments that run take milliseconds."""
    frontier_interval: float = Field(default=1.0, ge=0.01, le=60.0)
    """The shortest time between two events that carry only a frontier: people read these."""
    sse_heartbeat: float = Field(default=10.0, gt=0.0, le=300.0)
    """The longest silence on server-sent events; many proxies close a silent connection after a minute."""
    cors_origins: Annotated[ByComma, AfterValidator(check_cors_origins)] = ()
    """The origins whose web pages may read epochs, by comma, or `*`. By default none: browsers let no page read."""

    max_body: int = Field(default=64 * 1024, ge=1024, le=2**26)
    """No HTTP request to a relay has a body."""
    max_connections: int = Field(default=2048, ge=1)
    """Up to `max_readers` readers, and about as many clients that poll."""
    max_connections_per_address: int = Field(default=512, ge=1)
    """A quarter of all; more than `max_readers_per_address`, so that a client with too many readers gets that error."""
