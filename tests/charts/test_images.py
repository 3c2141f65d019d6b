"""The images: what their labels tell of what they were made from."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.charts.rendering import ROOT

from set_version import version

AUTHOR = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def run(command: str, where: Path, **environment: str) -> str:
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **AUTHOR}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=where, env={**os.environ, **alone, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_tree_that_is_not_as_committed_is_reported(tmp_path: Path) -> None:
    found = re.search(r"^revision\(\) \{.*?^\}", (ROOT / "tools" / "images").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    outside = run(f"{found[0]}; revision", tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert outside == "unknown"
    run("git init -q . && echo 1 > file && git add file && git commit -qm one && git tag v1", tmp_path)
    commit = run("git rev-parse --short HEAD", tmp_path)
    assert run(f"{found[0]}; revision", tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert run(f"{found[0]}; revision", tmp_path) == f"{commit}-dirty"


def test_images_that_are_built_as_the_page_says_know_what_they_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    found = re.search(r"^    export VERSION=.*?\n\n", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    pretended = 'docker() { echo "$VERSION ${REVISION:+known} $*"; }'
    built = run(f"{pretended}; {found[0]}", ROOT).splitlines()
    assert built == [
        f"{version()} known build --build-arg VERSION --build-arg REVISION --target {name}"
        f" -t registry.example.org/epochal/epochal-{name}:{version()} ."
        for name in COMPONENTS
    ]


COMPONENTS = ("catalog", "publisher", "operator", "toolbox")


@pytest.mark.parametrize("name", [*COMPONENTS, "spark"])
def test_every_image_takes_them_as_labels(name: str) -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(f" AS {name}\n")[2].partition("\nFROM ")[0]
    assert {"ARG VERSION=dev", "ARG REVISION=unknown"} <= set(stage.splitlines())
    assert 'org.opencontainers.image.revision="$REVISION"' in stage
