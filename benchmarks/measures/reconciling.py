"""What streams cost the operator: all applied at once, on a real API server, without a node: pods stay pending.

Not a comparison but a look for what is not linear, like growth, and a look at rest: an operator that writes although
nothing has changed would do so for ever. It takes the tests' API server (docs/cluster-tests.md), so it is not among
the measures that are taken by default.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from harness.bench import Bench
from harness.processes import cpu_seconds, resident_bytes
from harness.tables import Table
from tests.cluster.api.sandbox import Operator, Sandbox, eventually, open_sandbox
from tests.cluster.harness.apiserver import ApiServer, api_server

from epochal.kube.api import KINDS
from epochal.resources.definitions import all_crds

STREAMS = (100, 1_000)
RESTS = 2
"""Looks at every stream, while nothing changes."""
_NAMESPACE = "many"
_REQUESTS = "epochal_operator_kubernetes_requests_total"


async def measure(bench: Bench) -> list[Table]:
    """Rows of one table, each on an API server of its own."""
    rows = [await _row(bench, max(1, round(streams * bench.scale))) for streams in STREAMS]
    headings = ["streams", "s until all are applied", "ms a stream", "operator, ms a stream", "requests a stream"]
    headings += ["writes at rest", "operator, ms to look at one at rest", "operator, MiB"]
    return [Table("operator", "Streams applied at once: the operator", headings, rows)]


async def _row(bench: Bench, streams: int) -> list[str]:
    with tempfile.TemporaryDirectory() as directory, api_server() as server:
        _prepare(server)
        async with open_sandbox(server.kubeconfig, _NAMESPACE, Path(directory)) as set_up:
            set_up.node.held = True
            operator = set_up.operator(
                resync=10,
                catalog_interval=15,
                frontier_interval=10,
                retry_first=1,
                retry_last=60,
                rollout_patience=86400,
            )
            await operator.start()
            assert operator.child is not None
            pid = operator.child.pid
            began, before = time.monotonic(), cpu_seconds(pid)
            await asyncio.gather(*(_declare(set_up, number) for number in range(streams)))
            await eventually(lambda: _all_told(set_up, streams), timeout=1800, every=0.5)
            applied, cpu = time.monotonic() - began, cpu_seconds(pid) - before
            requests = await operator.counted(_REQUESTS)
            bench.tell(f"operator: {streams} streams applied in {applied:.1f} s")
            await operator.has_looked(2 * streams)  # what a first look has left for a second one
            before, written = cpu_seconds(pid), await _writes(operator)
            await operator.has_looked(RESTS * streams)
            rest = (cpu_seconds(pid) - before) / RESTS / streams
            return [
                f"{streams:,}",
                f"{applied:.1f}",
                f"{1e3 * applied / streams:.0f}",
                f"{1e3 * cpu / streams:.0f}",
                f"{requests / streams:.1f}",
                f"{await _writes(operator) - written:.0f}",
                f"{1e3 * rest:.1f}",
                f"{resident_bytes(pid) / 2**20:.0f}",
            ]


def _prepare(server: ApiServer) -> None:
    server.define(all_crds())
    server.kubectl("create", "namespace", _NAMESPACE)


_gate = asyncio.Semaphore(16)


async def _declare(set_up: Sandbox, number: int) -> None:
    async with _gate:
        await set_up.declare(f"s{number}", 1)


async def _all_told(set_up: Sandbox, streams: int) -> bool:
    """Whether every stream has its pod, and is told of in its object."""
    found, _ = await set_up.api.list(KINDS["Stream"], _NAMESPACE)
    pods, _ = await set_up.api.list(KINDS["Pod"], _NAMESPACE)
    return len(pods) == streams and all("catalogUid" in stream.get("status", {}) for stream in found)


async def _writes(operator: Operator) -> float:
    return await operator.counted(_REQUESTS) - await operator.counted(_REQUESTS, '"GET"')
