"""What one component needs from requirements.lock, with the hashes.

Run as `python tools/component_lock.py COMPONENT...`, at the root of the repository: prints the locked requirements of
the library and of each extra that is named. `core` means the library alone, `build` what builds packages,
`compiler` what compiles the protocol beside that, and `editable` what an editable install needs beside it.

The Dockerfile runs it, so that an image has exactly the versions that were tested, and nothing that its component does
not import; so does `make try`, for its environment. It needs the standard library only, because it runs where nothing
is installed yet.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

BUILD = ("hatchling", "pip", "setuptools")
"""setuptools is for packages that exist as source only, such as PySpark, and for compiling."""
COMPILER = ("mypy",)
EDITABLE = ("editables",)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_VIA = re.compile(r"^ +# (?:via )? *(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>.*)$")


def requirements(lock: str) -> dict[str, str]:
    """The text of each locked requirement by its normal name, comments included."""
    entries: dict[str, list[str]] = {}
    name = ""
    for line in lock.splitlines():
        if (found := _NAME.match(line)) is not None:
            name = normal(found.group())
            entries.setdefault(name, [])  # a package can be locked twice, for different systems
        if name:
            entries[name].append(line)
    return {name: "\n".join(lines) for name, lines in entries.items()}


def needed(entries: Mapping[str, str], roots: Iterable[str]) -> tuple[str, ...]:
    """The names of `roots` and all that they need, sorted. Raises `ValueError` for a root that is not locked."""
    taken: set[str] = set()
    todo = {normal(root) for root in roots}
    if missing := todo - set(entries):
        raise ValueError(f"not in requirements.lock: {', '.join(sorted(missing))}; run `make lock`")
    needs: dict[str, set[str]] = {}
    for name, text in entries.items():
        for parent in parents(text):
            needs.setdefault(parent, set()).add(name)
    while todo:
        name = todo.pop()
        taken.add(name)
        todo |= needs.get(name, set()) - taken
    return tuple(sorted(taken))


def roots_of(project: Mapping[str, Any], component: str) -> tuple[str, ...]:
    """The names that pyproject.toml requires for `component`. Raises `ValueError` for an extra that is not there."""
    if component == "build":
        return BUILD
    if component == "compiler":
        return COMPILER
    if component == "editable":
        return EDITABLE
    extras = project["optional-dependencies"]
    if component != "core" and component not in extras:
        there = ", ".join(["build", "compiler", "core", "editable", *sorted(extras)])
        raise ValueError(f"no component '{component}'; there are {there}")
    wanted = [*project["dependencies"], *extras.get(component, [])]
    return tuple(found.group() for text in wanted if (found := _NAME.match(text)) is not None)


def normal(name: str) -> str:
    """A package's name as all its spellings share it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parents(text: str) -> Iterable[str]:
    """The packages that need a requirement: those in the comments after it, without this project itself."""
    for line in text.splitlines():
        found = _VIA.match(line)
        if found is not None and found["name"] != "via" and not found["rest"].strip():
            yield normal(found["name"])


def main(arguments: Sequence[str]) -> int:
    """Entry point; the exit status is 2 for wrong usage."""
    if not arguments:
        print("usage: component_lock.py COMPONENT...", file=sys.stderr)
        return 2
    entries = requirements(Path("requirements.lock").read_text())
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    try:
        names = needed(entries, {root for component in arguments for root in roots_of(project, component)})
    except ValueError as error:
        print(f"component_lock.py: {error}", file=sys.stderr)
        return 2
    for name in names:
        print(entries[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
