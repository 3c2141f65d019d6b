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


def rows(dashboard: Any) -> dict[str, list[Any]]:
    """The panels of each row, by its title."""
    found: dict[str, list[Any]] = {}
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            found[panel["title"]] = []
        else:
            [*found.values()][-1].append(panel)
    return found


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_and_their_panels_are_listed_from_top_to_bottom(path: Path):
    """Grafana puts a panel into the row above it, wherever the file has it."""
    panels = json.loads(path.read_text())["panels"]
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in panels]
    assert places == sorted(places)
    assert all(panel["gridPos"]["w"] == 24 for panel in panels if panel["type"] == "row")


def test_the_row_of_relays_shows_what_they_measure():
    shown = rows(json.loads((CHART / "files" / "dashboards" / "epochal.json").read_text()))["Relays"]
    asked = {name for query in queries({"panels": shown, "templating": {"list": []}}) for name in metrics(query)}
    measured = {name for name in DOCUMENTED if name.startswith("epochal_relay_")}
    assert len(measured) > 20
    assert asked == measured - {
        "epochal_relay_pushed_messages_total",  # the bytes of the same are there
        "epochal_relay_discarded_peers",  # so are refusals, by their reason
    }


def test_the_chart_brings_it_whole_where_grafana_looks():
    config = find(render(nested("grafanaDashboards.enabled", True)), "ConfigMap", "-dashboards")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in FILES
    }
    elsewhere = {"grafanaDashboards": {"enabled": True, "namespace": "monitoring"}}
    assert find(render(elsewhere), "ConfigMap", "-dashboards")["metadata"]["namespace"] == "monitoring"
