"""The dashboard: whatever it asks for is something that the services expose."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import CHART, find, nested, render
from tests.operator.exposing import exposed

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
DOCUMENTED = set(
    re.findall(r"^\| `([a-z_]+)` \|", PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0], re.MULTILINE)
)
"""The tables of metrics, which other tests compare with running services."""
FILES = sorted((CHART / "files" / "dashboards").glob("*.json"))
FUNCTIONS = {"rate", "increase", "sum", "max", "by", "le", "histogram_quantile", "label_values"}


def queries(dashboard: Any) -> list[str]:
    """Every query of a dashboard's panels and variables."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [each["query"] for each in dashboard["templating"]["list"]]
    return found + [each["query"] for each in variables if isinstance(each, dict)]


def metrics(query: str) -> set[str]:
    """The names of metrics in a query: what is neither a function, a label, nor inside quotes or brackets."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)|, stream\)", " ", query)
    return set(re.findall(r"[a-z_]{3,}", bare)) - FUNCTIONS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_metric_is_one_that_a_service_exposes(path: Path):
    asked = {name for query in queries(json.loads(path.read_text())) for name in metrics(query)}
    plain = {re.sub(r"_seconds_(bucket|count|sum)$", "_seconds", name) for name in asked}
    assert len(DOCUMENTED) > 30
    assert plain <= DOCUMENTED | exposed()
    assert len(plain) > 25, "the expression that finds names finds them"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_names_of_their_own_and_lie_side_by_side(path: Path):
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_chart_brings_it_whole_where_grafana_looks():
    config = find(render(nested("grafanaDashboards.enabled", True)), "ConfigMap", "-dashboards")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in FILES
    }
    elsewhere = {"grafanaDashboards": {"enabled": True, "namespace": "monitoring"}}
    assert find(render(elsewhere), "ConfigMap", "-dashboards")["metadata"]["namespace"] == "monitoring"
