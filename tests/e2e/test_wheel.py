"""The wheel in an environment of its own, without the source tree: what is missing is said, what comes is enough."""

import email
import json
import os
import signal
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
STREAM = """
apiVersion: epochal.dev/v1alpha1
kind: Stream
metadata: {name: delays, namespace: demo}
spec: {time: {shape: int}, payload: {encoding: msgpack}}
"""


def needed(wheel: Path, extra: str) -> set[str]:
    """The distributions that pip would install with `epochal[extra]`, from the metadata of wheel and distributions."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        own = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found: set[tuple[str, str]] = set()
    left: list[tuple[str, str]] = [("epochal", one) for one in ("", extra)]
    while left:
        name, wanted = left.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        for text in own if name == "epochal" else metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                left += [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
    return {name for name, _ in found} - {"epochal"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE * 2)
    (built,) = directory.glob("epochal-*.whl")
    return built


def installed(wheel: Path, place: Path, extra: str) -> Path:
    """The `bin` of a fresh environment with the wheel and what it needs, as `pip install "epochal[extra]"` leaves it.

    The other packages are linked from this environment, since nothing is fetched in a test.
    """
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    for name in needed(wheel, extra):
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(distribution.locate_file(file))))
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    install = [*pip, "install", "--no-index", "--no-deps", "-q", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE * 2)
    return place / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has never seen the source tree."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EPOCHAL", "VIRTUAL"))}
    return {**kept, "HOME": str(tmp_path)}


@pytest.mark.pure("pip finds the wheel under test on PYTHONPATH, and installs no other")
def test_the_plain_wheel_says_what_local_mode_needs(wheel: Path, tmp_path: Path, elsewhere: dict[str, str]) -> None:
    epochal = installed(wheel, tmp_path / "venv", "") / "epochal"
    ended = subprocess.run(
        [epochal, "up", "--port", "0"], cwd=tmp_path, env=elsewhere, capture_output=True, timeout=PATIENCE, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "local mode needs packages that are not installed (alembic, " in ended.stderr
    assert "pip install 'epochal[local]'" in ended.stderr


@pytest.mark.pure("pip finds the wheel under test on PYTHONPATH, and installs no other")
def test_the_wheel_with_its_extra_runs_local_mode_and_its_commands(
    wheel: Path, tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    epochal = installed(wheel, tmp_path / "venv", "local") / "epochal"

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [epochal, *arguments], cwd=tmp_path, env=elsewhere, input=stdin, capture_output=True, timeout=PATIENCE,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    with subprocess.Popen(
        [epochal, "up", "--port", "0"], cwd=tmp_path, env=elsewhere, stdout=subprocess.PIPE, text=True
    ) as up:
        try:
            assert up.stdout is not None
            elsewhere["EPOCHAL_CATALOG"] = up.stdout.readline().split()[2]
            assert run("apply", "-f", "-", stdin=STREAM) == "stream demo/delays created\n"
            run("pub", "demo/delays", "--time", "0", "--key", "JFK", '{"delay": 3}', "--advance", "1")
            shown = run("sub", "demo/delays", "--since", "start", "--epochs", "--count", "1", "--json")
            assert json.loads(shown) == {"kind": "epoch", "time": 0, "records": [{"delay": 3}]}
        finally:
            up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0


@pytest.mark.pure("pip finds the wheel under test on PYTHONPATH, and installs no other")
def test_the_wheel_with_its_extra_is_enough_for_make_try(
    wheel: Path, tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    python = installed(wheel, tmp_path / "venv", "local") / "python"
    ended = subprocess.run(
        [python, ROOT / "examples" / "first_look.py"], cwd=tmp_path, env=elsewhere, capture_output=True,
        timeout=PATIENCE, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "epoch 5 complete" in ended.stdout
