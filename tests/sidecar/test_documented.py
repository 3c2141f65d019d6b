"""docs/sidecar.md against the settings and the metrics of the code."""

import re
from pathlib import Path

from tests.sidecar.conftest import Start

from epochal.service.settings import ServiceSettings
from epochal_publisher.sidecar.server import SidecarSettings

PAGE = (Path(__file__).parents[2] / "docs" / "sidecar.md").read_text(encoding="utf-8")


def test_every_setting_of_the_process_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `EPOCHAL_SIDECAR_(\w+)`[^|]*\| `?([^|`]*)`? \|", PAGE, re.MULTILINE))
    named = set(SidecarSettings.model_fields) - set(ServiceSettings.model_fields) - {"pod", "catalog", "http_port"}
    assert {name.upper() for name in named} == set(rows)
    for name in named:
        default = SidecarSettings.model_fields[name].default
        assert rows[name.upper()] == (f"{default:g}" if isinstance(default, float) else str(default)), name


async def test_every_metric_is_documented(start: Start) -> None:
    sidecar = await start()
    _, text = await sidecar.get("/metrics")
    shown = set(re.findall(r"^(epochal_sidecar_\w+)\{", text, re.MULTILINE))
    assert shown == set(re.findall(r"^\| `(epochal_sidecar_\w+)`", PAGE, re.MULTILINE))
