"""`make demo-cluster` as it is typed: helm, the operator, Spark in cluster mode and two subscribers, on few days."""

import os
import re
import subprocess
import sys

from tests.cluster.harness import evidence
from tests.cluster.harness.kubernetes import Kubernetes
from tests.cluster.harness.places import ROOT

DAYS = 6
TIMEOUT = 1500


def test_the_hours_that_pods_compute_are_those_of_plain_spark(cluster: Kubernetes) -> None:
    environment = {**os.environ, "KEEP": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "tools/demo_cluster.py", "--days", str(DAYS), "--timeout", "900"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    said = done.stdout + done.stderr
    (evidence.directory_of("demo-cluster-test") / "output.txt").write_text(said)
    assert done.returncode == 0, said
    assert "6 days: 114 hours, 5,166 flights" in said
    assert re.search(r"from the start +114 of 114 hours \(100 %\) +every number equal", said), said
    assert re.search(r"late +\d+ of 114 hours \(\d+ %\) +every number equal, and no hour in part", said), said
    assert re.search(r"a publisher +deleted by force at \d+ % +back after", said), said
    assert "in 6 micro-batches" in said, said
    assert cluster.find("namespace", "epochal-demo") is None
