"""Pages against the models of Stream and Relay: every field with its default and meaning, as `kubectl explain` says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.resources.admission import RELAY_SCHEMA, SCHEMA, admitted

from epochal.resources.documents import load_manifests

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "stream.md").read_text(encoding="utf-8")
RELAYS = (DOCS / "relays.md").read_text(encoding="utf-8").partition("## On Kubernetes")[2].partition("\n## ")[0]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, default and description of every field that holds a value."""
    for name, inner in schema["properties"].items():
        where = f"{path}.{name}".lstrip(".")
        items = inner.get("items", {})
        if inner.get("type") == "object" and "properties" in inner:
            yield from fields(inner, where)
        elif "properties" in items:
            yield from fields(items, f"{where}[]")
        else:
            default = inner.get("default", "needed" if name in schema.get("required", ()) else "")
            text = str(default).lower() if isinstance(default, bool) else default
            shown = "" if default in ({}, [], "") else f"`{text}`"
            yield where, "needed" if default == "needed" else shown, inner["description"]


def table(schema: dict[str, Any]) -> list[str]:
    """The rows as they stand on the page."""
    return [f"| `{path}` | {default} | {text} |" for path, default, text in fields(schema["properties"]["spec"])]


@pytest.mark.parametrize(("page", "schema"), [(PAGE, SCHEMA), (RELAYS, RELAY_SCHEMA)], ids=["streams", "relays"])
def test_every_field_is_described_with_its_default(page: str, schema: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `[a-z].*\| .* \|$", page.partition("| status | meaning |")[0], re.MULTILINE)
    assert rows == table(schema)


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE + RELAYS, re.MULTILINE | re.DOTALL))
def test_the_examples_are_taken(text: str) -> None:
    assert load_manifests(text)
    for document in yaml.safe_load_all(text):
        assert admitted(document) == []
