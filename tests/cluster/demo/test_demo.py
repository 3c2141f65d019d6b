"""`make demo-cluster` as it is typed: helm, the operator, Spark in cluster mode and two subscribers, on few days.

In a folder that is collected before `node_tests`: these runs install a release of their own, and the one of those tests
serves all namespaces.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.harness import evidence
from tests.cluster.harness.kubernetes import Kubernetes, eventually
from tests.cluster.harness.load import kill_9, processes
from tests.cluster.harness.places import ROOT
from tests.patience import PATIENCE

DAYS = 6
TIMEOUT = 1500
NAMESPACE = "epochal-demo"
CONNECTED = "03"
"""The state of a Unix socket in /proc/net/unix."""
A_DAY_IS_COMPLETE = re.compile(r" hours complete, ")


def demo(name: str, *arguments: str, at: re.Pattern[str], meanwhile: Callable[[], None]) -> str:
    """Run it, with `meanwhile` called at the first line that has `at`; returns what it said, after a good end."""
    environment = {**os.environ, "KEEP": "", "PYTHONPATH": str(ROOT)}
    command = [
        "timeout",
        str(TIMEOUT),
        sys.executable,
        "-m",
        "examples.demo.cluster",
        "--days",
        str(DAYS),
        "--timeout",
        "900",
    ]
    lines: list[str] = []
    called = False
    with subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if not called and at.search(line):
                    called = True
                    meanwhile()
        except BaseException:
            process.terminate()
            raise
        finally:
            (evidence.directory_of(f"demo-cluster-test-{name}") / "output.txt").write_text("".join(lines))
    said = "".join(lines)
    assert process.returncode == 0, said
    assert called, said
    return said


def judge(said: str, cluster: Kubernetes) -> None:
    """What every run must say and leave."""
    assert "6 days: 114 hours, 5,166 flights" in said
    assert re.search(r"from the start +114 of 114 hours \(100 %\) +every number equal", said), said
    assert re.search(r"late +\d+ of 114 hours \(\d+ %\) +every number equal, and no hour in part", said), said
    assert "in 6 micro-batches" in said, said
    assert cluster.find("namespace", NAMESPACE) is None


def test_the_hours_that_pods_compute_are_those_of_plain_spark_and_one_trace_leads_through_all_pods(
    cluster: Kubernetes,
) -> None:
    """Sidecars by templates, a publisher's pod deleted by force while the job runs, and everything traced."""
    said = demo("traces", "--traces", at=A_DAY_IS_COMPLETE, meanwhile=lambda: None)
    judge(said, cluster)
    assert re.search(r"a publisher +deleted by force at \d+ % +back after", said), said
    # The demo itself asks Zipkin for a trace with spans of the driver, both executors, a sidecar, a publisher and a
    # subscriber, and ends with an error where there is none.
    found = re.search(
        r"one trace leads .*: 1 batch, 1 commit, (\d+) send, (\d+) forward, (\d+) append, (\d+) process", said
    )
    assert found, said
    assert all(int(count) >= 2 for count in found.groups()[:2]), said
    assert re.search(
        r"the hour of 2013-01-0\d, \d\d:00:\n +http://127\.0\.0\.1:\d+/zipkin/traces/[0-9a-f]{32}\n", said
    ), said


def test_injected_sidecars_of_executors_are_killed_under_load_and_every_number_is_equal(
    cluster: Kubernetes, own_node: Kubernetes
) -> None:
    """The namespace is *restricted*; driver and executors have sidecars by a label alone."""

    def executors() -> dict[str, Any]:
        which = ("pods", "--selector", "spark-role=executor")
        return {pod["metadata"]["name"]: pod for pod in cluster.get(*which, namespace=NAMESPACE)["items"]}

    def restarts() -> dict[str, int]:
        return {name: pod["status"]["initContainerStatuses"][0]["restartCount"] for name, pod in executors().items()}

    def kill_both() -> None:
        pods = executors()
        assert [pod["metadata"]["labels"]["epochal.dev/inject"] for pod in pods.values()] == ["true"] * 2
        while pods:
            name = eventually(
                lambda: next((name for name, pod in pods.items() if is_used(pod)), None), PATIENCE * 2, 0.01
            )
            kill_9(pods.pop(name), program="epochal-publisher")
        eventually(lambda: set(restarts().values()) == {1}, PATIENCE * 2)

    said = demo("killed", "--sidecar", "inject", "--no-kill", at=A_DAY_IS_COMPLETE, meanwhile=kill_both)
    judge(said, cluster)


def is_used(pod: dict[str, Any]) -> bool:
    """Whether a writer is connected to the pod's sidecar, which runs on this machine."""
    for pid in processes(pod, "epochal-publisher"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()
            if any(line.endswith("/run/epochal/ingest.sock") and line.split()[5] == CONNECTED for line in lines):
                return True
    return False
