"""What one run of the benchmark gives its measures: a local mode, streams in it, rounds, and a place for messages.

Only names that every version has are imported here: `versions.py` runs this with another version's code.
"""

import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import epochal
from epochal.local import LocalMode
from harness.processes import cpu_seconds
from harness.rounds import in_turn

NAMESPACE = "bench"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Served:
    """A stream that publishers serve; `pids` are theirs."""

    name: str
    info: Any
    """What the catalog says of it."""
    pids: tuple[int, ...]

    def cpu(self) -> float:
        """Processor seconds that its publishers have used so far."""
        return sum(map(cpu_seconds, self.pids))


@dataclass(frozen=True, slots=True)
class Bench:
    """One run. `scale` is the share of the usual number of messages."""

    local: LocalMode
    rounds: int
    scale: float

    @property
    def catalog(self) -> str:
        """The URL of the catalog."""
        return self.local.url

    def many(self, usual: int) -> int:
        """How many messages to send where a run at full scale sends `usual`."""
        return max(200, int(usual * self.scale))

    def tell(self, text: str) -> None:
        """Say how far it is."""
        print(text, file=sys.stderr, flush=True)

    async def in_turn(self, systems: Mapping[str, Callable[[], Awaitable[float]]]) -> dict[str, list[float]]:
        """Figures of each system, one a round."""
        return await in_turn(self.rounds, systems, self.tell)

    @asynccontextmanager
    async def stream(
        self,
        name: str,
        *,
        segments: int = 1,
        encoding: str = "bytes",
        history: Mapping[str, object] = MappingProxyType({}),
        push: Mapping[str, object] = MappingProxyType({}),
        dedicated: bool = True,
    ) -> AsyncIterator[Served]:
        """A stream of its own for one run, all its segments in one publisher; `history`, `push` as in a manifest.

        `dedicated`: in a process of its own, as on a cluster.
        """
        spec: dict[str, Any] = {
            "time": {"shape": "int"},
            "payload": {"encoding": encoding},
            "segments": segments,
            "publishers": {"segmentsPerPod": segments, "dedicated": dedicated},
            "history": dict(history),
            "push": dict(push),
        }
        name = f"{name}-{next(_numbers)}"  # a name used again at once would wait for the old publisher to leave
        manifest = {
            "apiVersion": "epochal.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        async with epochal.connect(self.catalog) as client:
            await client.catalog.apply(manifest, NAMESPACE, name)
            info = await client.catalog.lookup(NAMESPACE, name, wait=60)
            owners = {known.publisher.id for known in info.segments if known.publisher is not None}
            try:
                running = self.local.processes
                shared = [pid for key, pid in running.items() if key.startswith("shared-")]
                pids = [running[owner] for owner in owners if owner in running] or shared
                yield Served(f"{NAMESPACE}/{name}", info, tuple(pids))
            finally:
                await client.catalog.delete(NAMESPACE, name)
