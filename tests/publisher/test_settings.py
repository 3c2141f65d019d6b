"""Settings from options and the environment."""

import pytest

from epochal.errors import ConfigError
from epochal_publisher.settings import Settings

GIVEN = {"catalog": "http://h:1/", "stream": "a/b", "segments": "1, 0,1", "publisher": "p"}


def test_what_is_given_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("EPOCHAL_PUBLISHER_HOST", "::1")
    monkeypatch.setenv("EPOCHAL_PUBLISHER_STREAM", "x/y")
    monkeypatch.setenv("EPOCHAL_PUBLISHER_SEGMENTS", "7")
    settings = Settings.read(**GIVEN, advertise=None)
    assert (settings.host, settings.stream, settings.segments) == ("::1", "a/b", ("1", "0"))
    assert settings.catalog == "http://h:1"
    assert Settings.read(catalog="http://h", publisher="p").segments == ("7",)


def test_settings_cannot_be_changed():
    settings = Settings.read(**GIVEN)
    with pytest.raises(ValueError, match="frozen"):
        settings.host = "0.0.0.0"


@pytest.mark.parametrize(
    ("field", "value"),
    [("catalog", "ftp://x"), ("segments", " , "), ("stream", "b"), ("tick", 0), ("ingest_port", -1), ("other", 1)],
)
def test_a_wrong_setting_is_named(field, value):
    with pytest.raises(ConfigError) as raised:
        Settings.read(**{**GIVEN, field: value})
    assert [problem.path for problem in raised.value.problems] == [field]
