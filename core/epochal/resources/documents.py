"""Reads manifests from YAML text.

YAML has dangers of its own: duplicate keys, aliases that multiply, nesting that exhausts the stack, merge keys that
hide where a field comes from. All are refused here, with the line. Dates stay text.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

from epochal.errors import ManifestError, Problem
from epochal.resources.manifest import StreamManifest
from epochal.resources.problems import MAX_DEPTH, MAX_NODES, nearest, path_of, show
from epochal.resources.relay import RelayManifest

MAX_TEXT = 1 << 20
"""Characters in one file of manifests."""
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A loader with the types of JSON only: dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


Manifest: TypeAlias = StreamManifest | RelayManifest
_KINDS: dict[object, type[StreamManifest] | type[RelayManifest]] = {"Stream": StreamManifest, "Relay": RelayManifest}


def load_manifests(text: str, *, namespace: str | None = None) -> list[Manifest]:
    """All manifests in `text`, in order, without empty documents; `namespace` is used where a manifest has none.

    Raises `ManifestError` with the problems of all documents. If there are several, each path begins with the number of
    its document (`document 2: spec...`).
    """
    documents, problems = _load_documents(text)
    manifests: list[Manifest] = []
    seen: dict[tuple[str, str], int] = {}
    for number, document in documents:
        where = f"document {number}: " if len(documents) > 1 else ""
        try:
            manifest = read_manifest(document, namespace)
        except ManifestError as error:
            problems.extend(Problem(where + problem.path, problem.reason, problem.hint) for problem in error.problems)
            continue
        declared = manifest.kind, manifest.qualified
        if declared in seen:
            reason = f"declares {manifest.qualified} again; document {seen[declared]} does already"
            problems.append(Problem(f"{where}metadata.name", reason))
        seen.setdefault(declared, number)
        manifests.append(manifest)
    if not documents and not problems:
        problems.append(
            Problem("document", "holds no manifest", "a manifest begins with apiVersion: epochal.dev/v1alpha1")
        )
    if problems:
        raise ManifestError(
            "the manifest is not valid" if len(documents) < 2 else "the manifests are not valid", problems
        )
    return manifests


def read_manifest(document: Any, namespace: str | None) -> Manifest:
    """The manifest in a document, of any kind; raises `ManifestError`."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if isinstance(kind, str) and kind not in _KINDS:
        raise ManifestError(
            "the manifest is not valid",
            [Problem("kind", f"must be one of {', '.join(map(str, _KINDS))}, not {show(kind)}", _meant(kind))],
        )
    return _KINDS[kind if isinstance(kind, str) else "Stream"].from_document(document, namespace=namespace)


def _meant(kind: str) -> str:
    hint = nearest(kind, [*map(str, _KINDS)])
    return hint if hint.startswith("did") else ""


def _load_documents(text: str) -> tuple[list[tuple[int, Any]], list[Problem]]:
    """The non-empty documents with their numbers from 1, and the problems of the YAML itself."""
    try:
        _check_size(text)
        loader = _Loader(text)
        documents: list[tuple[int, Any]] = []
        problems: list[Problem] = []
        number = 0
        while loader.check_node():
            number += 1
            if (node := loader.get_node()) is None:
                continue
            found = list(_node_problems(node, f"document {number}: "))
            problems.extend(found)
            if not found and (document := _construct(loader, node)) is not None:
                documents.append((number, document))
        return documents, problems
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an int too long to convert
        reason = " ".join(str(error).split())[:300]
        raise ManifestError("the text is not YAML", [Problem("document", reason)]) from None


def _construct(loader: _Loader, node: yaml.Node) -> Any:
    return loader.construct_document(node)


def _check_size(text: str) -> None:
    """Check length and depth, on the parser's events: these need no recursion, unlike the composer that comes next."""
    if len(text) > MAX_TEXT:
        raise ManifestError("the text is too long", [Problem("document", f"has more than {MAX_TEXT} characters")])
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 0
            problem = Problem("document", f"is nested more than {MAX_DEPTH} levels deep at line {line}")
            raise ManifestError("the text is nested too deeply", [problem])


def _node_problems(root: yaml.Node, where: str) -> Iterator[Problem]:
    """Duplicate keys, merge keys, and too many values.

    Values of aliases count each time that they are used. This runs before any object is built, so that a short text
    with nested aliases cannot fill the memory.
    """
    stack: list[tuple[tuple[str | int, ...], yaml.Node]] = [((), root)]
    seen = 0
    while stack:
        path, node = stack.pop()
        seen += 1
        if seen > MAX_NODES or len(path) > MAX_DEPTH:
            yield Problem(
                f"{where}document", f"holds more than {MAX_NODES} values, or is nested too deeply, aliases written out"
            )
            return
        if isinstance(node, yaml.SequenceNode):
            stack.extend(((*path, index), child) for index, child in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            yield from _key_problems(node, path, where)
            stack.extend(((*path, str(key.value)), child) for key, child in node.value)


def _key_problems(node: yaml.MappingNode, path: tuple[str | int, ...], where: str) -> Iterator[Problem]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            yield Problem(where + path_of(path), f"has a field whose name is not a text (line {line})")
        elif key.tag == _MERGE:
            yield Problem(where + path_of(path), f"uses a merge key '<<' (line {line})", "write the fields out")
        elif key.value in lines:
            yield Problem(where + path_of((*path, key.value)), f"is given twice (lines {lines[key.value]} and {line})")
        else:
            lines[key.value] = line
