"""What can be set, each with the reason of its default.

Apart from the entry point so that tests and the server take one frozen value and nobody else reads the environment.
"""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from epochal.errors import ConfigError, Problem

_PREFIX = "EPOCHAL_CATALOG_"


class Settings(BaseSettings):
    """Read from `EPOCHAL_CATALOG_*`; what is given to `read` wins. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Loopback: nothing is reachable from outside unless asked for."""
    port: int = Field(default=8700, ge=0, le=65535)
    """8700 is where clients look; 0 takes a free port."""
    data: Path = Path("epochal-catalog")
    """The directory of the database; created when missing."""
    lease_ttl: float = Field(default=10.0, ge=0.1, le=3600.0)
    """Publishers renew every second: ten may be missed before an address is withdrawn."""
    forget_after: float = Field(default=3600.0, ge=0.0)
    """How long a publisher that was superseded can still learn so."""
    busy_timeout: float = Field(default=5.0, ge=0.0, le=60.0)
    """How long a write waits for another process that holds the database."""
    max_body: int = Field(default=2**20, ge=1024, le=2**26)
    """A manifest or a report is a few KiB; 1 MiB is already a mistake."""
    header_timeout: float = Field(default=5.0, gt=0.0)
    """A client sends its request line and headers at once; who does not is not a client."""
    body_timeout: float = Field(default=10.0, gt=0.0)
    """The same for a body."""
    idle_timeout: float = Field(default=75.0, gt=0.0)
    """Longer than the second between renewals, so their connections are kept."""
    max_wait: float = Field(default=300.0, ge=0.0, le=3600.0)
    """The longest `wait` of one lookup; a client that wants more asks again."""
    max_waiters: int = Field(default=10_000, ge=1)
    """Lookups that may wait at once; each costs a connection and a few KiB."""
    subscription_ttl: float = Field(default=30.0, ge=0.1, le=3600.0)
    """Subscriptions renew every third of it; readers are many, and nothing waits for their lease."""
    max_subscriptions: int = Field(default=100_000, ge=1)
    """Subscriptions at once, over all streams; each is a row and a few hundred bytes of memory."""
    watch_events: int = Field(default=10_000, ge=1)
    """Changes that are kept for watchers that come back: some minutes of a busy catalog, about 5 MiB."""
    watch_queue: int = Field(default=1_000, ge=1)
    """Changes that a watcher may be behind before it is cut; it can resume, and others are not held up."""
    watch_heartbeat: float = Field(default=10.0, gt=0.0)
    """Proxies and watchers take a connection that is silent for longer to be dead."""
    max_watchers: int = Field(default=1_000, ge=1)
    """Watchers at once; each costs a connection."""
    max_pending: int = Field(default=1_000, ge=1)
    """Writes that may queue for the database; beyond it a retry later is better than a longer queue."""
    drain_timeout: float = Field(default=5.0, ge=0.0)
    """How long answers under way may take at a stop."""
    port_retries: int = Field(default=5, ge=0, le=60)
    """Tries, with growing pauses, when the port is taken: a predecessor may be about to leave it."""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Read all settings; None in `given` means not given. Raises `ConfigError` with every problem."""
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            problems = [
                _problem(".".join(map(str, item["loc"])), item["msg"], item["input"]) for item in error.errors()
            ]
            raise ConfigError("the settings of the catalog cannot be used", problems) from None


def _problem(name: str, reason: str, given: Any) -> Problem:
    option = "--" + name.replace("_", "-")
    return Problem(name, f"{reason} (given: {given!r})", f"set {option} or {_PREFIX}{name.upper()}")
