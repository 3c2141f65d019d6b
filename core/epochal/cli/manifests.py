"""The manifests that `-f` names: files, directories and standard input, read and checked before anything is changed."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from epochal.errors import ConfigError, ManifestError, Problem
from epochal.resources.documents import Manifest, load_manifests

SUFFIXES = (".yaml", ".yml", ".json")


def read_manifests(filenames: Sequence[str], namespace: str | None) -> list[Manifest]:
    """Every manifest of every file, in order; `namespace` replaces a missing one.

    Raises `ManifestError` with the problems of all files, each with its file's name when there are several.
    """
    texts = list(_texts(filenames))
    manifests: list[Manifest] = []
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for name, text in texts:
        where = f"{name}: " if len(texts) > 1 else ""
        try:
            found = load_manifests(text, namespace=namespace)
        except ManifestError as error:
            problems.extend(Problem(where + problem.path, problem.reason, problem.hint) for problem in error.problems)
            continue
        for manifest in found:
            if (first := seen.setdefault((manifest.kind, manifest.qualified), name)) != name:
                reason = f"declares {manifest.qualified} again; {first} does already"
                problems.append(Problem(f"{where}metadata.name", reason))
        manifests.extend(found)
    if problems:
        raise ManifestError("the manifests are not valid, and nothing was changed", problems)
    return manifests


def _texts(filenames: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, text) of each file; for a directory, of its manifest files by name, without sub-directories."""
    for filename in filenames:
        if filename == "-":
            yield "standard input", sys.stdin.read()
        elif (path := Path(filename)).is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not files:
                wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
                raise ConfigError(f"{filename} is a directory without manifests ({wanted})")
            for file in files:
                yield str(file), _read(file)
        else:
            yield filename, _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ManifestError("the manifest is not valid", [Problem(str(path), "is no text in UTF-8")]) from None
