"""The files of a release: the same bytes each time, and each is installed from a registry on loopback."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.charts.rendering import CHART, find_helm
from tests.patience import PATIENCE
from tests.tools.registry import serving

import dist
from set_version import version

WHEEL, SOURCES, CHART_PACKAGE = (f"epochal-{version()}{ending}" for ending in ("-py3-none-any.whl", ".tar.gz", ".tgz"))
HELM = find_helm() or "helm"
BILL = f"epochal-{version()}.cdx.json"
SCRIPTS = ("epochal-catalog", "epochal-publisher", "epochal-operator", "kubectl-epochal")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of this tree, without images."""
    target = tmp_path_factory.mktemp("release") / "dist"
    dist.make(target, images=False, dirty=True)
    return target


@pytest.fixture(scope="module")
def registry(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A simple index of packages at /simple, a repository of charts at /charts, and a registry of OCI artifacts."""
    served = tmp_path_factory.mktemp("served")
    (served / "simple" / "epochal").mkdir(parents=True)
    (served / "charts").mkdir()
    for name in (WHEEL, SOURCES):
        (served / "simple" / "epochal" / name).symlink_to(files / name)
    (served / "charts" / CHART_PACKAGE).symlink_to(files / CHART_PACKAGE)
    run(HELM, "repo", "index", served / "charts")
    with serving(served) as address:
        yield address


def run(*command: str | Path, where: Path | None = None) -> str:
    """What a program prints, started as by somebody who has never seen the source tree."""
    ours = ("PYTHON", "PIP", "EPOCHAL", "VIRTUAL")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    done = subprocess.run(
        list(map(str, command)), cwd=where, env={**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_same_tree_gives_the_same_bytes_and_their_sums(files: Path, tmp_path: Path) -> None:
    expected = {
        name: hashlib.sha256((files / name).read_bytes()).hexdigest() for name in (WHEEL, SOURCES, CHART_PACKAGE, BILL)
    }
    listed = {line[66:]: line[:64] for line in (files / dist.SUMS).read_text().splitlines()}
    assert listed == expected
    dist.make(tmp_path / "again", images=False, dirty=True)
    assert (tmp_path / "again" / dist.SUMS).read_text() == (files / dist.SUMS).read_text()


def test_a_tree_that_is_not_as_committed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dist, "_git", lambda *arguments: " M README.md" if arguments[0] == "status" else "1")
    with pytest.raises(dist.DistError, match="not as committed"):
        dist.make(tmp_path / "dist", images=False)
    assert not list(tmp_path.iterdir())


def test_the_bill_of_materials_has_what_is_installed_and_nothing_of_the_development(files: Path) -> None:
    text = (files / BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    found = {component["name"]: component for component in bill["components"]}
    for name in ("pyzmq", "sqlalchemy", "kopf", "pyspark"):
        assert found[name]["version"] == metadata.version(name)
        assert found[name]["externalReferences"][0]["hashes"]
    assert not {"pytest", "mypy", "cyclonedx-python-lib"} & found.keys()
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    assert found["pyzmq"]["bom-ref"] in needs[f"pkg:pypi/epochal@{version()}"]
    assert found["yarl"]["bom-ref"] in needs[found["aiohttp"]["bom-ref"]]


def linked(place: Path, *roots: str) -> Path:
    """The interpreter of a fresh environment with these locked packages and all that they need, and without epochal.

    They are linked from this environment, since nothing is fetched in a test.
    """
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    done: set[tuple[str, str]] = set()
    left = [(requirement.name, extra) for requirement in map(Requirement, roots) for extra in ("", *requirement.extras)]
    while left:
        name, extra = left.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        distribution = metadata.distribution(name)
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
        for file in distribution.files or () if name != "epochal" else ():
            target = packages / file
            if ".." not in file.parts and not target.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(distribution.locate_file(file))))
    return place / "bin" / "python"


@pytest.mark.pure("what is installed is the release's own wheel, which is pure Python")
@pytest.mark.parametrize("form", ["--only-binary", "--no-binary"], ids=["wheel", "sdist"])
def test_a_package_is_installed_from_an_index(registry: str, tmp_path: Path, form: str) -> None:
    """The source distribution is built by the locked hatchling."""
    python = linked(tmp_path / "venv", "epochal[local,operator,kube]", "hatchling")
    run(
        sys.executable, "-m", "pip", "--isolated", "--python", python, "install", "-q", "--no-deps", "--no-cache-dir",
        "--no-build-isolation", "--index-url", f"http://{registry}/simple", form, "epochal", f"epochal=={version()}",
    )  # fmt: skip
    shown = run(python.with_name("epochal"), "--version", where=tmp_path)
    assert shown == f"epochal {version()} (pure Python)\n"
    for script in SCRIPTS:
        assert run(python.with_name(script), "--help", where=tmp_path)
    place = run(python, "-c", "import epochal; print(epochal.__file__)", where=tmp_path)
    assert str(tmp_path) in place


@pytest.fixture
def helm(tmp_path: Path) -> list[str]:
    """The command, which knows no repositories yet."""
    options = ("repository-config", "repository-cache", "registry-config")
    return [HELM, *(f"--{option}={tmp_path / option}" for option in options)]


def test_the_chart_is_installed_from_a_repository(registry: str, helm: list[str]) -> None:
    run(*helm, "repo", "add", "epochal", f"http://{registry}/charts")
    drawn = run(*helm, "template", "epochal", "epochal/epochal", "--version", version())
    assert drawn == run(*helm, "template", "epochal", CHART)
    assert f"image: epochal-catalog:{version()}" in drawn.replace('"', "")


def test_the_chart_is_installed_from_an_oci_registry(registry: str, helm: list[str], files: Path) -> None:
    run(*helm, "push", files / CHART_PACKAGE, f"oci://{registry}/charts", "--plain-http")
    chart = f"oci://{registry}/charts/epochal"
    drawn = run(*helm, "template", "epochal", chart, "--version", version(), "--plain-http")
    assert drawn == run(*helm, "template", "epochal", CHART)


def test_an_archive_of_an_image_is_the_same_whenever_it_was_written(tmp_path: Path) -> None:
    written = []
    for order, time in ((("index.json", "blobs/sha256/a"), 1), (("blobs/sha256/a", "index.json"), 2)):
        archive = tmp_path / f"{time}.tar"
        with tarfile.open(archive, "w") as files:
            for name in order:
                data = (
                    json.dumps({"manifests": [{"digest": "sha256:1f"}]}).encode() if name == "index.json" else b"layer"
                )
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(data), time
                files.addfile(member, io.BytesIO(data))
        target = io.BytesIO()
        dist.normalise(archive, target, 1_700_000_000)
        written.append(target.getvalue())
        archive.write_bytes(target.getvalue())
        assert dist.digest(archive) == "sha256:1f"
    assert written[0] == written[1]
