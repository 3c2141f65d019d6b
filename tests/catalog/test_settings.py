"""Settings: options win over the environment, and every problem is told."""

import pytest
from pydantic import ValidationError

from epochal.errors import ConfigError
from epochal_catalog.runtime.settings import CatalogSettings


def test_options_win_over_the_environment_and_that_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_CATALOG_PORT", "9000")
    monkeypatch.setenv("EPOCHAL_CATALOG_LEASE_TTL", "3")
    monkeypatch.setenv("EPOCHAL_CATALOG", "http://somewhere:8700")  # where clients look; no setting of this service
    settings = CatalogSettings.read(port=0, host=None)
    assert (settings.port, settings.lease_ttl, settings.host) == (0, 3.0, "127.0.0.1")


def test_all_problems_are_reported_with_what_to_set() -> None:
    with pytest.raises(ConfigError) as caught:
        CatalogSettings.read(port=-1, lease_ttl="soon", nonsense=1)
    assert {problem.path for problem in caught.value.problems} == {"port", "lease_ttl", "nonsense"}
    assert "EPOCHAL_CATALOG_LEASE_TTL" in str(caught.value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        CatalogSettings.read().port = 1
