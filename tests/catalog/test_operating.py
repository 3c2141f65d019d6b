"""docs/operating.md against the services as they are: every setting with its default, every metric by name."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from epochal.errors import ConfigError
from epochal.service.settings import ServiceSettings
from epochal_catalog.runtime.settings import CatalogSettings
from epochal_publisher.relay.settings import RelaySettings
from epochal_publisher.settings import Settings as PublisherSettings

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
UNITS = {"s", "bytes", ""}


def rows(first: str) -> list[list[str]]:
    """The cells of all table rows whose first cell matches, which it is without its backquotes."""
    lines = re.findall(rf"^\| `({first})` \|(.*)\|$", PAGE, re.MULTILINE)
    return [[name, *(cell.strip() for cell in rest.split(" | "))] for name, rest in lines]


def shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "needed"
    if default is None or default == ():
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("settings", [CatalogSettings, PublisherSettings, RelaySettings])
def test_every_setting_is_described_with_its_default_and_unit(settings: type[ServiceSettings]) -> None:
    prefix = settings.model_config["env_prefix"]
    described = {name: (default, unit) for name, default, unit, _ in rows(prefix + "[A-Z_]+")}
    fields = settings.model_fields
    assert {name: default for name, (default, _) in described.items()} == {
        f"{prefix}{name.upper()}": shown(field.default) for name, field in fields.items()
    }
    for name, field in fields.items():
        unit = described[f"{prefix}{name.upper()}"][1]
        assert unit in UNITS
        assert (unit == "s") == (field.annotation is float), name


def metrics(text: str) -> set[str]:
    """The families of a Prometheus text, as its samples are named; those about the exporter itself are left out."""
    return {
        name + ("_total" if kind == "counter" else "")
        for name, kind in re.findall(r"^# TYPE (\S+?)(?:_total)? (\w+)$", text, re.MULTILINE)
        if name != "target_info"
    }


async def test_every_metric_of_the_catalog_is_described_and_none_that_is_not_there(client: Any) -> None:
    telemetry = client.server._telemetry
    telemetry.lapsed(1)
    telemetry.store_failed()
    telemetry.watcher_cut()
    telemetry.refused("max_body")
    uid = (await client.apply(progress={"whenLost": "hold"})).body["uid"]
    reader = (await client("POST", "/v1/streams/demo/flights/subscriptions", {"subscriber": "reader", "uid": uid})).body
    report = {"token": reader["token"], "counters": {"waiting_epochs": 3, "waiting_seconds": 2.5}}
    assert (await client("PUT", f"/v1/subscriptions/{reader['id']}", report)).status == 200
    await client("GET", "/healthz")
    text = (await client("GET", "/metrics")).body.decode()
    assert re.search(r'^epochal_stream_readers_waiting_seconds\{.*name="flights".*\} 2\.5$', text, re.MULTILINE)
    printed = metrics(text)
    described = {name for name, *_ in rows("(?:epochal|http)_[a-z_]+")}
    assert {name for name in printed if "publisher_" not in name} <= described
    others = ("epochal_publisher_", "epochal_relay_")
    assert {name for name in described if not name.startswith(others)} == printed


@pytest.mark.parametrize("name", ["EPOCHAL_CATALOG_PORT", "EPOCHAL_PUBLISHER_HTTP_PORT"])
def test_what_kubernetes_puts_into_the_environment_is_distinguished(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://10.96.0.17:8700")
    settings = CatalogSettings if "CATALOG" in name else PublisherSettings
    with pytest.raises(ConfigError, match="enableServiceLinks: false") as caught:
        settings.read()
    assert name in str(caught.value)
    assert "enableServiceLinks: false" in PAGE
