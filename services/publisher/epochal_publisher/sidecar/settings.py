"""The settings of a sidecar, each with the reason for its default.

Separate from the publisher's settings because the two processes share only an image.
"""

import os
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from epochal.client.catalog.catalog import catalog_url
from epochal.client.sidecar.sidecar import check_address
from epochal.errors import ConfigError
from epochal.service.settings import ServiceSettings
from epochal_publisher.sidecar.lanes import Limits


def _pod() -> str:
    return os.environ.get("EPOCHAL_POD_UID", "")


class SidecarSettings(ServiceSettings):
    """Read from `EPOCHAL_SIDECAR_*`; arguments of `read` win. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_SIDECAR_")
    service: ClassVar[str] = "sidecar"

    listen: str = "ipc:///run/epochal/ingest.sock"
    """Where writers connect: `ipc://PATH`, and by comma `tcp://127.0.0.1:PORT` for those that share no directory."""
    catalog: str = ""
    """The URL of the catalog; empty for EPOCHAL_CATALOG."""
    pod: str = Field(default_factory=_pod)
    """The uid of the pod, from EPOCHAL_POD_UID. Writers in another pod have another uid and do not use this sidecar."""
    http_port: int = Field(default=8705, ge=0, le=65535)
    """Port of health and metrics; 0 takes a free one."""
    held_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """What publishers have not taken yet, in all. Above this, nothing is read, so that the writers' windows fill."""
    max_lanes: int = Field(default=1024, ge=1)
    """Writers' connections at once; a writer has one for each segment."""
    silence: float = Field(default=120.0, gt=0.0)
    """How long a writer may be silent before its connection to the publisher is closed; open ones send heartbeats."""
    remember: float = Field(default=1.0, ge=0.0, le=60.0)
    """How long a look-up serves other writers too: the tasks of one batch begin within a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severity that is logged."""
    drain_timeout: float = Field(default=15.0, ge=0.0, le=20.0)
    """How long writers may go on after SIGTERM."""

    @property
    def addresses(self) -> list[str]:
        """Where to listen."""
        return [address.strip() for address in self.listen.split(",")]

    @property
    def limits(self) -> Limits:
        """The limits for `Lanes`."""
        return Limits(held=self.held_bytes, lanes=self.max_lanes, silence=self.silence)

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        for address in value.split(","):
            try:
                check_address(address.strip())
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("catalog")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            return catalog_url(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
