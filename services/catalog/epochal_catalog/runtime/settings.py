"""The settings of the catalog, each with the reason for its default.

They are one frozen value, made at the start of the process or by a test; nothing else reads the environment.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from epochal.service.settings import ServiceSettings


class CatalogSettings(ServiceSettings):
    """Read from `EPOCHAL_CATALOG_*`; values given to `read` win. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_CATALOG_")
    service: ClassVar[str] = "catalog"

    port: int = Field(default=8700, ge=0, le=65535)
    """8700 is the port that clients try by default; 0 takes a free port."""
    data: Path = Path("epochal-catalog")
    """The directory of the database; created when missing."""
    local_data: str = ""
    """Local mode's own directory; programs on this machine get it with the catalog's own stream."""
    trust_file_system: str = ""
    """A type of FUSE file system, such as `fuse.mergerfs`, that the database may be on; network ones never are."""
    lease_ttl: float = Field(default=10.0, ge=0.1, le=3600.0)
    """Publishers renew every second: about ten renewals may be missed before an address is withdrawn."""
    forget_after: float = Field(default=3600.0, ge=0.0)
    """How long a superseded publisher still gets the error that names this reason."""
    busy_timeout: float = Field(default=5.0, ge=0.0, le=60.0)
    """How long a write waits for another process that holds the database."""
    max_wait: float = Field(default=300.0, ge=0.0, le=3600.0)
    """The longest `wait` of one lookup; a client that wants to wait longer sends another."""
    max_waiters: int = Field(default=10_000, ge=1)
    """Lookups that may wait at once; each costs a connection and a few KiB."""
    subscription_ttl: float = Field(default=30.0, ge=0.1, le=3600.0)
    """Subscriptions renew in a third of it. It is long because readers are many and nothing waits for their leases."""
    max_subscriptions: int = Field(default=100_000, ge=1)
    """Subscriptions at once, over all streams; each is a row and a few hundred bytes of memory."""
    relay_ttl: float = Field(default=10.0, ge=0.1, le=3600.0)
    """Relays renew in a third of it. A reader that finds a dead one tries the next, so it need not be short."""
    max_relays: int = Field(default=10_000, ge=1)
    """Relays at once, over all streams; each is a row and about a KiB of memory."""
    watch_events: int = Field(default=10_000, ge=1)
    """Changes that are kept for watchers that come back: a few minutes of a busy catalog, about 5 MiB."""
    watch_queue: int = Field(default=1_000, ge=1)
    """Changes that a watcher may lag behind before it is cut. It can resume, and never slows down others."""
    watch_heartbeat: float = Field(default=10.0, gt=0.0)
    """Proxies and watchers treat a connection that is silent for much longer as dead."""
    max_watchers: int = Field(default=1_000, ge=1)
    """Watchers at once; each costs a connection."""
    max_pending: int = Field(default=1_000, ge=1)
    """Writes that may queue for the database; above that, a retry later is better than a longer queue."""
    drain_timeout: float = Field(default=5.0, ge=0.0)
    """How long requests under way may still take when the catalog stops."""
