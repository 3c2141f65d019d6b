"""The alerts: on metrics that a service exposes, with words for people, and as Prometheus takes them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, HelmError, find, nested, render
from tests.charts.test_dashboards import DOCUMENTED, FUNCTIONS
from tests.operator.exposing import exposed

FILE = CHART / "alerts" / "rules.yaml"
RULES: dict[str, Any] = yaml.safe_load(FILE.read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
ON = nested("metrics.prometheusRule.enabled", True)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_on_what_is_exposed_and_says_what_to_do(rule: dict[str, Any]) -> None:
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", " ", rule["expr"])
    asked = set(re.findall(r"[a-z_]{3,}", bare)) - FUNCTIONS - {"absent"}
    assert asked
    assert {re.sub(r"_seconds_count$", "_seconds", name) for name in asked} <= DOCUMENTED | exposed()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    kept = re.search(r"by \(([^)]*)\)", rule["expr"])
    assert used <= set(re.split(r", ?", kept[1]) if kept else ())


def test_alerts_have_names_of_their_own() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 5


def test_it_is_off_by_default_and_brought_whole() -> None:
    assert not [each for each in render() if each["kind"] == "PrometheusRule"]
    labels = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}}
    made = find(render(labels), "PrometheusRule", "-rules")
    assert made["spec"] == RULES
    assert made["metadata"]["labels"]["release"] == "prometheus"


def test_standbys_of_the_operator_are_declared_and_none_by_default() -> None:
    assert find(render(), "Deployment", "-operator")["spec"]["replicas"] == 1
    assert find(render(nested("operator.replicas", 3)), "Deployment", "-operator")["spec"]["replicas"] == 3
    with pytest.raises(HelmError, match="replicas"):
        render(nested("operator.replicas", 0))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
def test_prometheus_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(find(render(ON), "PrometheusRule", "-rules")["spec"]))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
