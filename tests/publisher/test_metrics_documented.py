"""The metrics of docs/operating.md against those of a running publisher."""

import re
from pathlib import Path
from typing import Any

import zmq

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def test_every_metric_of_the_publisher_is_described_and_none_that_is_not_there(
    shared: Any, wires: Any, wait_until: Any
) -> None:
    publisher, segment = shared.publisher, shared.segment()
    wires.writer(publisher, shared.stream, segment).open()
    wires.line(zmq.DEALER, publisher.addresses["requests"]).raw(b"no message of ours")
    wait_until(lambda: "epochal_publisher_refusals_total{" in publisher.get("/metrics")[1])
    types = re.findall(r"^# TYPE (\S+?)(?:_total)? (\w+)$", publisher.get("/metrics")[1], re.MULTILINE)
    printed = {name + ("_total" if kind == "counter" else "") for name, kind in types}
    described = set(re.findall(r"^\| `(epochal_publisher_[a-z_]+)` \|", PAGE, re.MULTILINE))
    assert {name for name in printed if name.startswith("epochal_publisher_")} == described
    common = {name for name in printed if not name.startswith("epochal_publisher_")} - {"target_info"}
    assert all(f"| `{name}` |" in PAGE for name in common)
