"""A thousand Streams applied at once: how long until all are planned and applied, what it costs, and what rest costs.

    python benchmarks/thousand_streams.py [--streams 1000]

It starts an API server with etcd, a catalog and an operator, all on this machine, and no nodes: pods stay pending.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.api.stage import Process, Stage, eventually, scrape, stage  # noqa: E402  # the root is not on the path before
from tests.cluster.harness import apiserver  # noqa: E402
from tests.cluster.harness.programs import free_port  # noqa: E402

from epochal.resources.crd import CRD_NAME, crd_text  # noqa: E402
from epochal_operator.api import KINDS  # noqa: E402

REST = 130.0
"""Seconds that are looked at afterwards: two resyncs."""


async def measured(count: int) -> dict[str, object]:
    """The whole story; numbers by name."""
    with tempfile.TemporaryDirectory() as directory, apiserver.api_server() as server:
        server.kubectl("apply", "--server-side", "-f", "-", stdin=crd_text())
        server.wait(f"crd/{CRD_NAME}", "condition=Established")
        server.kubectl("create", "namespace", "many")
        async with stage(server.kubeconfig, "many", Path(directory)) as set_up:
            set_up.node.held = True
            port = free_port()
            settings: dict[str, Any] = {"resync": 60, "catalog_interval": 15, "frontier_interval": 10, "retry_first": 1}
            settings["rollout_patience"] = 86400  # no node: every pod would be told as stuck in the middle of the rest
            operator = set_up.operator(metrics_port=port, **settings)
            await operator.start()
            began = time.monotonic()
            await _declare(set_up, count)
            declared = time.monotonic() - began
            await eventually(lambda: _all_told(set_up, count), timeout=1800, every=1.0)
            told = time.monotonic() - began
            before = await _requests(port)
            await asyncio.sleep(REST)
            after = await _requests(port)
            return {
                "streams": count,
                "declared_s": round(declared, 1),
                "planned_and_applied_s": round(told, 1),
                "requests_per_stream": {name: round(value / count, 2) for name, value in before.items()},
                "requests_at_rest": {name: after[name] - value for name, value in before.items()},
                "seconds_at_rest": REST,
                "operator_rss_MiB": round(_rss(operator) / 1024),
            }


async def _declare(set_up: Stage, count: int) -> None:
    gate = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with gate:
            await set_up.declare(f"s{number}", 1)

    await asyncio.gather(*map(one, range(count)))


async def _all_told(set_up: Stage, count: int) -> bool:
    streams, _ = await set_up.api.list(KINDS["Stream"], "many")
    pods, _ = await set_up.api.list(KINDS["Pod"], "many")
    return len(pods) == count and all("catalogUid" in stream.get("status", {}) for stream in streams)


async def _requests(port: int) -> dict[str, float]:
    text = await scrape(f"http://127.0.0.1:{port}/metrics")
    found: dict[str, float] = {}
    for labels, value in re.findall(r"^epochal_operator_kubernetes_requests_total\{(.*?)\} (\S+)$", text, re.MULTILINE):
        [method] = re.findall(r'http_request_method="(\w+)"', labels)
        found[method] = found.get(method, 0.0) + float(value)
    return found


def _rss(operator: Process) -> int:
    assert operator.child is not None
    pids = [operator.child.pid]
    text = "".join(Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return sum(map(int, re.findall(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    print(json.dumps(asyncio.run(measured(parser.parse_args().streams)), indent=1))
