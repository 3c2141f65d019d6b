"""The settings that every service has, each with the reason for its default, and how settings are read.

The same limit has the same name and meaning in every service.
"""

from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from epochal.errors import ConfigError, Problem


def _by_comma(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


ByComma: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_by_comma)]
"""Names in one text, separated by commas; each is kept once, in order."""

Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]
"""A port to listen on; 0 takes a free one."""


class ServiceSettings(BaseSettings):
    """Read from the environment, with the prefix of the service; values given to `read` win. Seconds and bytes."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")
    service: ClassVar[str]
    """The name of the service, for messages."""
    max_line: ClassVar[int] = 8190
    """Bytes of a request line; other servers have the same limit."""

    host: str = "127.0.0.1"
    """The address to listen on. Loopback: nothing can be reached from outside unless this is set."""
    hosts: ByComma = ()
    """More names by which the service is called, when it listens on loopback; web pages of these may change things. All
    other names but those of loopback are refused there, so that no web page can reach it by a name of its own."""
    max_body: int = Field(default=2**20, ge=1024, le=2**26)
    """The largest body of an HTTP request, once unpacked. A manifest is a few KiB; 1 MiB is already a mistake."""
    header_timeout: float = Field(default=5.0, gt=0.0, le=60.0)
    """For the head of an HTTP request. A real client sends it at once."""
    body_timeout: float = Field(default=10.0, gt=0.0, le=300.0)
    """For the body of an HTTP request, after its head has come."""
    write_timeout: float = Field(default=30.0, gt=0.0, le=300.0)
    """For an HTTP client to read what it was sent; one that does not read is cut."""
    idle_timeout: float = Field(default=75.0, gt=0.0, le=3600.0)
    """For the next request on a kept HTTP connection. It is long: proxies and our client close theirs earlier."""
    max_connections: int = Field(default=8192, ge=1)
    """HTTP connections at once; each costs a file descriptor and some 20 KiB. Above it, only health and metrics."""
    max_connections_per_address: int = Field(default=4096, ge=1)
    """HTTP connections at once from one address, so that one machine does not use up `max_connections`."""
    spare_connections: int = Field(default=64, ge=1, le=1024)
    """Connections above the limits, for /healthz, /readyz and /metrics; the oldest is cut for a newer one."""
    port_retries: int = Field(default=5, ge=0, le=60)
    """Retries, with growing pauses, when the HTTP port is taken: an earlier process may be about to release it."""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Read all settings; `given`: the options of the command, None for those not given.

        Raises `ConfigError` with every problem.
        """
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            problems = [
                cls._problem(".".join(map(str, item["loc"])), item["msg"], item["input"], given)
                for item in error.errors()
            ]
            raise ConfigError(f"the settings of the {cls.service} cannot be used", problems) from None

    @classmethod
    def variable(cls, name: str) -> str:
        """The environment variable of a setting."""
        return f"{cls.model_config.get('env_prefix', '')}{name.upper()}"

    def known_hosts(self) -> tuple[str, ...]:
        """The names of `hosts`, and those that other settings give the service."""
        return self.hosts

    @classmethod
    def _problem(cls, name: str, reason: str, value: Any, options: dict[str, Any]) -> Problem:
        shown = "" if isinstance(value, dict) else f" (given: {value!r})"  # a dict is all the input: this was missing
        if name.endswith("port") and str(value).startswith(("tcp://", "udp://")):
            return Problem(
                name,
                "is an address, as Kubernetes puts one into the environment of every pod for a Service of this name"
                + shown,
                f"set enableServiceLinks: false in the pod, or {cls.variable(name)} to a number",
            )
        option = f"--{name.replace('_', '-')} or " if name in options else ""
        return Problem(name, reason + shown, f"set {option}{cls.variable(name)}")
