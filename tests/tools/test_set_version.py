"""The version has one source, and every copy of it is the same."""

import shutil
from pathlib import Path

import pytest

import set_version
from set_version import PLACES, ROOT, copies


def test_every_copy_is_that_of_the_project() -> None:
    for place, found in copies().items():
        assert found, place
        assert set(found) == {set_version.version()}, place


def test_another_version_is_written_everywhere(tmp_path: Path) -> None:
    for path in PLACES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    assert set_version.write("12.34.56", tmp_path) == list(PLACES)
    assert set_version.version(tmp_path) == "12.34.56"
    assert {each for found in copies(tmp_path).values() for each in found} == {"12.34.56"}
    assert set_version.write("12.34.56", tmp_path) == []


@pytest.mark.parametrize("arguments", [[], ["1.2.3", "4"], ["v1.2.3"], ["1.2"]])
def test_what_is_no_version_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert set_version.main(arguments) == 2
    assert "usage: set_version.py VERSION" in capsys.readouterr().err
