"""docs/operator.md against the operator: settings with their defaults, reasons, metrics."""

import re
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from tests.operator.exposing import exposed

from epochal.resources.cluster import status
from epochal.service.settings import ServiceSettings
from epochal_operator import reconciler
from epochal_operator.settings import OperatorSettings

PAGE = (Path(__file__).parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")


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


def test_every_metric_is_described() -> None:
    there = {name for name in exposed() if name.startswith("epochal_operator_")}
    assert there == set(re.findall(r"^\| `(epochal_operator_\w+)`", PAGE, re.MULTILINE))
