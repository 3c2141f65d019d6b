"""A sidecar for the demo's job: one process on a path of its own, for as long as the job runs."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from epochal.local.child import Child, console_script

START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
LOG_BYTES = 2**20


@contextlib.asynccontextmanager
async def sidecar(catalog: str, log: Path) -> AsyncIterator[dict[str, str]]:
    """Run a sidecar; gives the environment by which a program goes through it, and through nothing else."""
    with tempfile.TemporaryDirectory(prefix="epochal-") as directory:  # a path of its own, for sockets' are short
        address = f"ipc://{directory}/ingest.sock"
        program = console_script("epochal-publisher")
        where = ("--listen", address, "--catalog", catalog, "--http-port", "0")
        child = await Child.start([program, "sidecar", *where, "--exit-with-stdin"], log, LOG_BYTES)
        try:
            await child.ready(START_TIMEOUT)
            yield {
                "EPOCHAL_SIDECAR": address,
                "EPOCHAL_SIDECAR_REQUIRED": "true",
                "EPOCHAL_SIDECAR_TIMEOUT": "30",  # also where the machine is small
            }
        finally:
            await child.stop(STOP_TIMEOUT)
