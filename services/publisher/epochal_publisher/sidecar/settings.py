"""What can be set at a sidecar, each with the reason of its default.

Apart from the publisher's own settings because the two processes share an image and nothing else.
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
    """Read from `EPOCHAL_SIDECAR_*`; what is given to `read` wins. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="EPOCHAL_SIDECAR_")
    service: ClassVar[str] = "sidecar"

    listen: str = "ipc:///run/epochal/ingest.sock"
    """Where writers connect: `ipc://PATH`, and by comma `tcp://127.0.0.1:PORT` for who cannot share a directory."""
    catalog: str = ""
    """The URL of the catalog; empty for EPOCHAL_CATALOG."""
    pod: str = Field(default_factory=_pod)
    """The uid of the pod, from EPOCHAL_POD_UID: writers of another pod, with another one, do not use this sidecar."""
    http_port: int = Field(default=8705, ge=0, le=65535)
    """Health and metrics; 0 takes a free one."""
    held_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """What publishers have not taken yet, in all; above it nothing is read, so that writers' own windows fill."""
    max_lanes: int = Field(default=1024, ge=1)
    """Writers' connections at once, one a segment."""
    silence: float = Field(default=120.0, gt=0.0)
    """How long a writer may say nothing before its way to the publisher is closed: open ones send heartbeats."""
    remember: float = Field(default=1.0, ge=0.0, le=60.0)
    """How long a look-up serves further writers: the tasks of one batch begin within a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged: from this severity on."""
    drain_timeout: float = Field(default=15.0, ge=0.0, le=20.0)
    """How long writers may go on after SIGTERM."""

    @property
    def addresses(self) -> list[str]:
        """Where to listen."""
        return [address.strip() for address in self.listen.split(",")]

    @property
    def limits(self) -> Limits:
        """What the lanes are bound by."""
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
