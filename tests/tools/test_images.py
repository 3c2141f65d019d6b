"""What the Dockerfiles have in common: the layers that they share, the user, and what they start."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "catalog": "services/catalog/Dockerfile",
    "publisher": "services/publisher/Dockerfile",
    "operator": "operator/Dockerfile",
    "toolbox": "core/Dockerfile",
    "spark": "spark/kubernetes/Dockerfile",
}
TRACING = {"collector": "tests/tracing/collector/Dockerfile", "zipkin": "tests/tracing/zipkin/Dockerfile"}
"""Images of others' programs, for tests and demos."""
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture(params=FILES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(name: str) -> str:
    return (ROOT / FILES[name]).read_text()


def stage(text: str, name: str) -> str:
    """The instructions of one stage, without comments."""
    (found,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in found.splitlines() if line and not line.startswith("#"))


def last(text: str, instruction: str) -> str:
    return [line for line in text.splitlines() if line.startswith(instruction + " ")][-1].partition(" ")[2]


def test_what_builds_and_our_wheel_are_made_once_for_all(name: str):
    for shared in ("builder", "wheel"):
        assert stage(read(name), shared) == stage(read("catalog"), shared)


def test_what_carries_data_is_compiled(name: str):
    text, builder = read(name), (ROOT / "tools" / "images").read_text()
    by_default = re.search(r"^ARG COMPILED=1$", text, re.MULTILINE) is not None
    ours = re.search(rf'^ +\[ "\$name" != {name} \].* COMPILED=1\)$', builder, re.MULTILINE) is not None
    assert (by_default or ours) == (name in ("publisher", "spark"))
    if by_default:
        assert text.index("ARG COMPILED=1") < text.index("FROM "), "or no stage sees it"
        assert "ARG BUILD_BASE=docker.io/library/python:3.13\n" in text, "the one with a C compiler"


def test_code_comes_after_what_changes_less(name: str):
    text = read(name)
    assert "COPY core" not in stage(text, "dependencies")
    end = text.rpartition("\nFROM ")[2]
    assert end.index("--from=dependencies") < end.index("--from=application")


def test_every_version_is_checked_by_hash(name: str):
    text = read(name)
    assert text.count("pip --quiet install") == text.count("--upgrade --require-hashes") == 1
    assert "--require-hashes" in stage(text, "dependencies")
    assert "--no-index" in stage(text, "application"), "our wheel needs nothing from elsewhere by then"


def test_it_does_not_run_as_root(name: str):
    assert last(read(name), "USER") == "10001:10001"


def test_it_starts_a_command_of_this_project(name: str):
    (program,) = json.loads(last(read(name), "ENTRYPOINT"))
    assert program in SCRIPTS or (name == "spark" and Path(program).name == "entrypoint.sh")


def test_it_says_what_it_is(name: str):
    text = read(name)
    assert f'org.opencontainers.image.title="epochal-{name}"' in text
    for label in ("description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text
    assert f"sbom.py epochal-{name} " in text


def test_the_builder_of_images_knows_them_all():
    text = (ROOT / "tools" / "images").read_text()
    assert dict(re.findall(r"^ +\[(\w+)\]=(\S+)$", text, re.MULTILINE)) == FILES | TRACING


@pytest.mark.parametrize("name", TRACING)
def test_others_programs_run_as_no_root_and_say_what_they_are(name: str):
    text = (ROOT / TRACING[name]).read_text()
    assert last(text, "USER") == "10001:10001"
    assert f'org.opencontainers.image.title="epochal-{name}"' in text
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in (line.split()[1] for line in text.splitlines() if line.startswith("COPY ")):
        assert f"!{copied}" in allowed, "or it is not there to be copied"
