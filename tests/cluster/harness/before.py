"""The version before: its chart and images, for tests of the upgrade.

They are built once, and kept beside the images of the present version, whose layers they share: the code in them is
that of the commit, and what others wrote is as it is now.
"""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.cluster.harness.building import BuildError, locked
from tests.cluster.harness.places import ROOT
from tests.version_before import commit, extract

TAG = "before"
_COMPONENTS = ("catalog", "publisher", "operator", "toolbox")
_IMAGES = ROOT / ".cache" / "images"
_CODE = ("core", "services", "operator", "spark", "charts")
_AS_NOW = (
    "Dockerfile",
    "pyproject.toml",
    "requirements.lock",
    ".dockerignore",
    "README.md",
    "LICENSE",
    "tools",
    "examples/demo",
)
"""What is taken from the present tree: how images are built, and the locked packages."""
_SHARED = ("storage", "run", "driver", "lock")
"""What builds of both versions share: the layers, and the lock by which they take turns."""


class Before(NamedTuple):
    """What `built` has made. `archives`: images `localhost/epochal-NAME:TAG`."""

    tag: str
    chart: Path
    archives: tuple[Path, ...]


def built() -> Before:
    """Chart and images, built if need be: a minute or two the first time. Those of another commit are removed then.

    Raises:
        NoHistoryError: The repository does not have the commit, as in a shallow clone.
        BuildError: An image could not be built.
    """
    target = _IMAGES / f"{TAG}-{commit()}"
    with locked(_IMAGES / f"{TAG}.lock"):
        if not target.exists():
            for other in _IMAGES.glob(f"{TAG}-*"):
                shutil.rmtree(other)
            _build(target)
    return Before(TAG, target / "chart", tuple(target / f"{name}.tar" for name in _COMPONENTS))


def _build(target: Path) -> None:
    with TemporaryDirectory(dir=_IMAGES) as directory:
        sources = Path(directory)
        extract(_CODE, sources)
        for name in _AS_NOW:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, sources / name)
        images = sources / ".cache" / "images"
        images.mkdir(parents=True)
        for name in _SHARED:
            if name in ("storage", "run"):
                (_IMAGES / name).mkdir(exist_ok=True)
            (images / name).symlink_to(_IMAGES / name)
        # The build asks git for the commit. Without the ceiling, git would find the repository around this directory.
        environment = {**os.environ, "TAG": TAG, "COMPILED": "0", "GIT_CEILING_DIRECTORIES": str(_IMAGES)}
        command = [str(sources / "tools" / "images"), *_COMPONENTS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the images of {target.name} could not be built:\n{done.stdout}{done.stderr}")
        made = sources / "made"
        shutil.copytree(sources / "charts" / "epochal", made / "chart")
        for name in _COMPONENTS:
            (images / f"{name}.tar").rename(made / f"{name}.tar")
        made.rename(target)
