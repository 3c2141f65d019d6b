"""Publishing and subscribing, from pods and from outside, as applications and people do it."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.pods import pod, said_by
from tests.cluster.harness.release import POD_PATIENCE
from tests.cluster.harness.streams import stream
from tests.cluster.harness.toolbox import IMAGE, Toolbox

MAIN = "from epochal.cli import main; main()"
RECORDS = [{"n": number} for number in range(20)]


CONNECT = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def found(port):
    try:
        socket.create_connection((sys.argv[1], port), 5).close()
    except OSError as error:
        return f"{port}={type(error).__name__}"
    return f"{port}=reached"

with ThreadPoolExecutor(3) as pool:
    print(*pool.map(found, (8701, 8702, 8703)))
"""
"""Says of each port of a publisher whether it is reached, or how not."""

SWALLOWED = """
import asyncio, epochal, itertools, sys, time

tries = []

async def reach(address):
    tries.append(time.monotonic())
    return address

async def main():
    async with epochal.connect(reach=reach) as client:
        opening = asyncio.create_task(client.writer(sys.argv[1]).__aenter__())
        while len(tries) < 4 and not opening.done():
            await asyncio.sleep(0.05)
        opening.cancel()
        await asyncio.wait([opening])
    print(max(later - earlier for earlier, later in itertools.pairwise(tries)))

asyncio.run(main())
"""
"""Says how many seconds a writer takes at most from one try to connect to the next."""


@pytest.mark.parametrize("storage", [True, False], ids=["storage", "memory"])
def test_pods_of_another_namespace_publish_and_subscribe(streams, toolbox, storage):
    streams.start(stream("orders", storage=storage, segments=2))
    name = f"{streams.namespace}/orders"
    toolbox.publish(name, 1, *RECORDS)
    toolbox.publish(name, 2, {"n": -1})
    expected = sorted(RECORDS, key=json.dumps)
    assert toolbox.epochs(name, 2) == {1: expected, 2: [{"n": -1}]}
    streams.told("orders", "Ready", "Serving")
    assert streams.get("orders")["status"]["frontier"] in ("[0]", "[2]", "[3]"), "written at most every ten seconds"


def test_the_command_of_the_notes(cluster, release, streams):
    """As a Pod in place of `kubectl run`, with the same container."""
    streams.start(stream("first", storage=False))
    notes = cluster.helm("get", "notes", release.name, "--namespace", release.namespace)
    script = next(line.strip().strip("'") for line in notes.splitlines() if "epochal pub demo/first" in line)
    environment = [{"name": "EPOCHAL_CATALOG", "value": release.catalog_url}]
    assert f"--env=EPOCHAL_CATALOG={release.catalog_url} --command -- sh -c" in notes
    asked = {
        "image": IMAGE,
        "env": environment,
        "command": ["sh", "-c", script.replace("demo/", f"{streams.namespace}/")],
    }
    assert "hello" in said_by(cluster, streams.namespace, pod("first-client", "", container=asked))


def test_only_its_own_namespace_and_those_of_clients_reach_a_publisher(cluster, release, streams, namespaces, toolbox):
    streams.start(stream("orders", storage=False))
    stranger = Toolbox(cluster, namespaces())
    connect = ("python", "-c", CONNECT, f"orders-0.orders.{streams.namespace}.svc")
    assert toolbox.run(*connect).split() == ["8701=reached", "8702=reached", "8703=reached"]
    assert stranger.run(*connect).split() == ["8701=TimeoutError", "8702=TimeoutError", "8703=TimeoutError"]
    # The node drops its packets, as a network does whose machine is gone: that is not waited for as long as TCP would.
    took = float(stranger.run("python", "-c", SWALLOWED, f"{streams.namespace}/orders"))
    assert 1.5 < took < 30, "2 s, and a short pause"  # load: TCP by itself takes two minutes


# ---- from outside: by way of the API server, the kubelet and the containers' own network ----


def test_from_outside_by_port_forwarding(cluster, streams):
    name = f"{streams.namespace}/orders"
    manifest = json.dumps({**stream("orders"), "metadata": {"name": "orders", "namespace": streams.namespace}})
    _outside(cluster, "apply", "-f", "-", stdin=manifest)
    streams.settled("orders")
    _outside(cluster, "pub", name, "--time", "1", "--advance", "2", '{"n": 1}')
    said = _outside(cluster, "sub", name, "--since", "start", "--epochs", "--json", "--count", "1")
    assert json.loads(said) == {"kind": "epoch", "time": 1, "records": [{"n": 1}]}
    _outside(cluster, "delete", "stream", name, "--wait")
    assert cluster.find("stream", "orders", namespace=streams.namespace) is None


def test_megabytes_go_in_and_come_out_whole(cluster, streams):
    name = f"{streams.namespace}/orders"
    streams.start(stream("orders"))
    records = [{"n": number, "text": hashlib.sha512(str(number).encode()).hexdigest() * 4} for number in range(8000)]
    _outside(cluster, "pub", name, "--time", "1", "-f", "-", "--finish", stdin="\n".join(map(json.dumps, records)))
    epoch, *_ = map(json.loads, _outside(cluster, "sub", name, "--since", "start", "--epochs", "--json").splitlines())
    assert (epoch["kind"], epoch["time"]) == ("epoch", 1)
    assert epoch["records"] == records


def test_a_subscription_finds_a_pod_that_is_replaced(cluster, streams):
    name = f"{streams.namespace}/orders"
    streams.start(stream("orders", progress={"writerTimeout": "5s"}))
    with subprocess.Popen(
        _command("sub", name, "--epochs", "--json", "--count", "2"),
        env=_environment(cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        told: list[str] = []
        listener = threading.Thread(target=told.extend, args=(reading.stderr,), daemon=True)
        listener.start()
        try:
            eventually(
                lambda: json.loads(_outside(cluster, "get", "subscriptions", name, "-o", "json"))["items"], POD_PATIENCE
            )
            _outside(cluster, "pub", name, "--time", "1", '{"n": 1}', "--advance", "2")
            assert json.loads(reading.stdout.readline()) == {"kind": "epoch", "time": 1, "records": [{"n": 1}]}
            old = streams.pods("orders")["orders-0"]["metadata"]["uid"]
            cluster.kubectl("delete", "pod", "orders-0", "-n", streams.namespace, "--grace-period=0", "--force")
            eventually(lambda: old not in map(_uid, streams.pods("orders").values()), POD_PATIENCE)
            streams.settled("orders")
            _outside(cluster, "pub", name, "--time", "7", '{"n": 7}', "--finish")
            found = [json.loads(line) for line in reading.stdout]
            assert {"kind": "epoch", "time": 7, "records": [{"n": 7}]} in found, (found, told)
            assert reading.wait(POD_PATIENCE) == 0
        finally:
            reading.kill()
            listener.join(POD_PATIENCE)


def _uid(document: dict[str, Any]) -> str:
    return str(document["metadata"]["uid"])


def test_doctor_tries_every_port_and_finds_nothing_wrong(cluster, streams):
    streams.start(stream("orders", storage=False))
    eventually(
        lambda: _publishers(cluster) == [f"{streams.namespace}/orders"], POD_PATIENCE
    )  # those of other tests stop
    assert re.search(
        r"ok +ports +all \d+ ports of \d+ publishers? answer", _outside(cluster, "doctor", "--timeout", "60")
    )


def _publishers(cluster: Kubernetes) -> list[str]:
    """The streams that publishers hold a lease for; a registration whose lease has lapsed stays in the list."""
    found = json.loads(_outside(cluster, "get", "publishers", "--all-namespaces", "-o", "json"))
    return [item["stream"] for item in found["items"] if item["live"] and not item["superseded"]]


def _command(*arguments: str) -> list[str]:
    """`epochal --kube ARGUMENTS`, of the release."""
    return [sys.executable, "-c", MAIN, "--kube", "--kube-namespace", "epochal", *arguments]


def _environment(cluster: Kubernetes) -> dict[str, str]:
    ours = ("EPOCHAL_CATALOG", "EPOCHAL_NAMESPACE", "KUBERNETES_SERVICE_HOST")
    kept = {key: value for key, value in os.environ.items() if key not in ours}
    return {**kept, "KUBECONFIG": str(cluster.kubeconfig)}


def _outside(cluster: Kubernetes, *arguments: str, stdin: str = "") -> str:
    """What `epochal --kube ARGUMENTS` prints, on this machine."""
    done = subprocess.run(
        _command(*arguments),
        env=_environment(cluster),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=POD_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
