"""Write another version at all places that name it: `python tools/set_version.py VERSION`, or `make version`.

`pyproject.toml` is its source: programs read it from their package's metadata. What cannot read it there, such as the
chart and the commands of the pages, has a copy; `PLACES` lists them all, and the tests compare them.
"""

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES: Mapping[str, Sequence[str]] = {
    "pyproject.toml": (r'^version = "(.+)"$',),
    "charts/epochal/Chart.yaml": (r"^version: (.+)$", r'^appVersion: "(.+)"$', r"^      image: epochal-\w+:(.+)$"),
    "docs/install.md": (
        r"export VERSION=(\S+)",
        r"image\.tag=(\d\S*)",
        r"/epochal-spark:(\S+)",
        r"epochal(?:-catalog)?-(\d+\.\d+\.\d+)",
        r"/epochal-catalog:(\d\S*)",
        r"--version (\d\S*)",
    ),
    "docs/kubernetes-clients.md": (r"/epochal-toolbox:(\S+)",),
    "docs/spark.md": (r"--tag (\d[^\"\s]*)",),
}
"""File -> patterns whose group is the version; each is found at least once."""
FORM = re.compile(r"\d+\.\d+\.\d+")


def version(root: Path = ROOT) -> str:
    """The version of this tree."""
    found = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert isinstance(found, str)
    return found


def copies(root: Path = ROOT) -> dict[tuple[str, str], list[str]]:
    """(File, pattern) -> the versions there."""
    return {
        (path, pattern): re.findall(pattern, (root / path).read_text(), re.MULTILINE)
        for path, patterns in PLACES.items()
        for pattern in patterns
    }


def write(new: str, root: Path = ROOT) -> list[str]:
    """Write `new` at all places; returns the files that changed. Raises `ValueError` for what is no version."""
    if FORM.fullmatch(new) is None:
        raise ValueError(f"{new!r} is no version such as 1.2.3")
    changed = []
    for path, patterns in PLACES.items():
        before = text = (root / path).read_text()
        for pattern in patterns:
            text = re.sub(pattern, lambda found: found[0].replace(found[1], new), text, flags=re.MULTILINE)
        if text != before:
            (root / path).write_text(text)
            changed.append(path)
    return changed


def main(arguments: Sequence[str]) -> int:
    """Entry point; the exit status is 2 for wrong usage."""
    try:
        (new,) = arguments
        changed = write(new)
    except ValueError as error:
        print(f"set_version.py: {error}\nusage: set_version.py VERSION", file=sys.stderr)
        return 2
    print("\n".join(changed) or f"it is {new} everywhere")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
