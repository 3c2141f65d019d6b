"""The metrics of docs/operating.md against those of a running publisher."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.patience import PATIENCE

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def test_every_metric_of_the_publisher_is_described_and_none_that_is_not_there(
    start: Any, wires: Any, wait_until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_PUBLISHER_WEBHOOK_TARGETS", "127.0.0.0/8")
    stream, publisher = start({"data": tmp_path}, history={"storage": {"size": "1Gi"}})
    wires.writer(publisher, stream).open()
    hooks = publisher.addresses["http"] + "/v1/segments/0/webhooks"
    body = json.dumps({"callback": "http://127.0.0.1:9/", "subscription": "one"}).encode()
    asked = urllib.request.Request(hooks, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(asked, timeout=PATIENCE).close()
    urllib.request.urlopen(urllib.request.Request(hooks + "/one", method="DELETE"), timeout=PATIENCE).close()
    wait_until(lambda: "epochal_publisher_commit_duration_seconds_count" in publisher.get("/metrics")[1])
    wires.line(zmq.DEALER, publisher.addresses["requests"]).raw(b"no message of ours")
    wait_until(lambda: "epochal_publisher_refusals_total{" in publisher.get("/metrics")[1])
    types = re.findall(r"^# TYPE (\S+?)(?:_total)? (\w+)$", publisher.get("/metrics")[1], re.MULTILINE)
    printed = {name + ("_total" if kind == "counter" else "") for name, kind in types}
    described = set(re.findall(r"^\| `(epochal_publisher_[a-z_]+)` \|", PAGE, re.MULTILINE))
    assert {name for name in printed if name.startswith("epochal_publisher_")} == described
    common = {name for name in printed if not name.startswith("epochal_publisher_")} - {"target_info"}
    assert all(f"| `{name}` |" in PAGE for name in common)
