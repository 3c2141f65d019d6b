"""`tools/require` and its list: what a machine lacks is said before anything is installed, all at once."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from examples.demo.prerequisites import check_java
from tests.cluster.harness import building
from tests.cluster.harness.building import UnfitError

from epochal.errors import ConfigError

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "env", "head", "sed", "sort", "make", "grep", "awk")
"""What a machine has on which `make` runs at all."""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory of programs as on a machine where nothing that we need is installed, and whose user is root."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tmp_path / name).symlink_to(found)
    installed(tmp_path, "id", "echo 0")
    installed(tmp_path, "uname", 'echo "Linux x86_64"')
    return tmp_path


def installed(bare: Path, name: str, does: str = "true") -> None:
    """Put a program there."""
    (bare / name).write_text(f"#!{shutil.which('bash')}\n{does}\n")
    (bare / name).chmod(0o755)


def said(bare: Path, *command: str, **variables: str) -> tuple[int, str]:
    """What a command says on that machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "KUBECONFIG", "PYTHON")}
    environment = {**kept, "PATH": str(bare), **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def packages(text: str) -> list[str]:
    """The packages that the one line of apt-get has."""
    (line,) = re.findall(r"apt-get install (.*)", text)
    return line.split()


def test_all_packages_stand_in_one_line_as_the_harness_names_them(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = said(bare, "tools/require", "make demo-cluster", "node", "images", "java")
    assert status == 1
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(UnfitError) as refused:
        building.require(building.programs("api", "node", "images", "java"))
    assert packages(text) == packages(str(refused.value))
    assert {"buildah", "mmdebstrap", "etcd-server", "containerd", "openjdk-17-jre-headless"} <= set(packages(text))


def test_what_is_there_is_not_named(bare: Path) -> None:
    for program in building.IMAGE_PROGRAMS:
        installed(bare, program)
    installed(bare, "java", "echo 'openjdk version \"17.0.9\"' >&2")
    assert said(bare, "tools/require", "this", "images", "java", "python") == (0, "")


def test_a_java_that_is_too_old_is_none(bare: Path) -> None:
    installed(bare, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    assert packages(said(bare, "tools/require", "this", "java")[1]) == ["openjdk-17-jre-headless"]


def test_user_and_machine_are_reported_beside_the_packages(bare: Path) -> None:
    installed(bare, "id", "echo 1000")
    installed(bare, "uname", 'echo "Linux aarch64"')
    status, text = said(bare, "tools/require", "this", "node")
    assert status == 1
    assert "Linux on x86-64; this is Linux aarch64" in text
    assert "need root" in text
    assert "containerd" in packages(text)


@pytest.mark.parametrize(
    ("target", "variables", "wanted", "not_wanted"),
    [
        ("demo-cluster", {}, {"containerd", "etcd-server", "buildah", "openjdk-17-jre-headless"}, set()),
        ("demo-cluster", {"KUBECONFIG": "k"}, {"buildah", "openjdk-17-jre-headless"}, {"containerd", "etcd-server"}),
        ("demo-cluster", {"DEMO_ARGS": "--registry r"}, {"containerd", "openjdk-17-jre-headless"}, {"buildah"}),
        ("cluster-up", {}, {"containerd", "etcd-server"}, {"buildah", "openjdk-17-jre-headless"}),
        ("cluster-up", {"TIER": "api"}, {"etcd-server"}, {"containerd", "buildah"}),
        ("cluster-build", {}, {"containerd", "etcd-server", "buildah"}, {"openjdk-17-jre-headless"}),
        ("test-cluster", {}, {"containerd", "etcd-server", "buildah"}, {"openjdk-17-jre-headless"}),
    ],
)
def test_make_asks_before_it_installs_anything(
    bare: Path, target: str, variables: dict[str, str], wanted: set[str], not_wanted: set[str]
) -> None:
    # With another directory for what it installs, make would begin to install before anything else.
    venv = bare / "venv"
    status, text = said(bare, "make", target, f"VENV={venv}", "TEST_ARGS=", **variables)
    assert status != 0
    assert wanted <= set(packages(text)), text
    assert not not_wanted & set(packages(text)), text
    assert not venv.exists()


def test_the_other_places_that_name_packages_name_these(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "cluster-tests.md").read_text()
    (row,) = re.findall(r"^\| Debian packages \|(.*)\|$", page, re.MULTILINE)
    named = set(" ".join(re.findall(r"`([^`]+)`", row)).split())
    assert named == set(building.programs("api", "node", "images").values()) - {"util-linux"}  # which Debian always has
    (java,) = building.programs("java").values()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=f"apt-get install {java}"):
        check_java()
    assert f"apt-get install {java}" in (ROOT / "tools" / "require-java").read_text()
