"""docs/operator.md and docs/relays.md against the operator: settings with their defaults, reasons, metrics."""

import re
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from tests.operator.exposing import exposed

from epochal.resources.cluster import relay_status, status
from epochal.service.settings import ServiceSettings
from epochal_operator import reconciler, relays
from epochal_operator.settings import OperatorSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operator.md").read_text(encoding="utf-8")
RELAYS = (DOCS / "relays.md").read_text(encoding="utf-8")


def shown(field: Any) -> str:
    if field.default_factory is not None:
        return "its own"
    if field.default is PydanticUndefined:
        return "needed"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default or "")


def test_every_setting_of_its_own_is_described() -> None:
    rows = re.findall(r"^\| `EPOCHAL_OPERATOR_([A-Z_]+)` \|(.*?)\|(.*?)\|", PAGE, re.MULTILINE)
    own = {
        name: field for name, field in OperatorSettings.model_fields.items() if name not in ServiceSettings.model_fields
    }
    own["host"] = OperatorSettings.model_fields["host"]
    assert {name.lower(): default.strip() for name, default, _ in rows} == {
        name: shown(field) for name, field in own.items()
    }
    for name, _, unit in rows:
        assert (unit.strip() == "s") == (own[name.lower()].annotation is float)


def test_every_reason_is_described() -> None:
    sources = [Path(str(module.__file__)).read_text() for module in (status, reconciler)]
    reasons = set(re.findall(r'(?:True|False),\s+"([A-Z][A-Za-z]+)"', "".join(sources)))
    reasons |= set(re.findall(r'wrong ?= ?\("([A-Z][A-Za-z]+)"', "".join(sources))) | {"NameConflict"}
    described = {
        name for cell in re.findall(r"\| (?:True|False) \| (.*?) \|", PAGE) for name in re.findall("`(.*?)`", cell)
    }
    assert reasons == described


def test_every_reason_of_relays_is_described() -> None:
    sources = "".join(Path(str(module.__file__)).read_text() for module in (relay_status, relays))
    reasons = set(re.findall(r'(?:True|False), "([A-Z][A-Za-z]+)"', sources)) | {"NameConflict"}
    reasons |= set(re.findall(r'\("([A-Z][A-Za-z]+)", (?:reason|waits|refused|refusals)', sources))
    cells = re.findall(r"\| (?:True|False) \| (.*?) \|", RELAYS)
    assert reasons == {name for cell in cells for name in re.findall("`(.*?)`", cell)}


def test_every_metric_is_described() -> None:
    there = {name for name in exposed() if name.startswith("epochal_operator_")}
    assert there == set(re.findall(r"^\| `(epochal_operator_\w+)`", PAGE, re.MULTILINE))
