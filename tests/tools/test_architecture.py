"""docs/architecture.md against the code: every path and module on it exists, and the imports are the real ones."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCES = [ROOT / place for place in ("core", "services/catalog", "services/publisher", "operator", "spark")]
PARTS = {
    "services/catalog": "epochal_catalog",
    "services/publisher": "epochal_publisher",
    "operator": "epochal_operator",
    "spark": "epochal_spark",
}


@cache
def imports(path: Path, *, inside_functions: bool = True) -> frozenset[str]:
    """The modules that one file imports, without those that only type checkers see."""
    return frozenset(_imports(path, inside_functions=inside_functions))


def _imports(path: Path, *, inside_functions: bool) -> Iterator[str]:
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))


def imported(files: Iterable[Path]) -> set[str]:
    return {name for path in files for name in imports(path)}


def test_every_path_exists() -> None:
    named = re.findall(r"`([a-z_]+(?:/\w+)+(?:\.py)?)`", PAGE) + re.findall(r"\bepochal\w*/[\w/]+\.py\b", PAGE)
    assert len(named) > 80
    assert [path for path in named if not any((base / path).exists() for base in (ROOT, *SOURCES))] == []


def test_every_module_exists() -> None:
    named = re.findall(r"`(epochal(?:_[a-z]+)?(?:\.[a-z_]+)+)`", PAGE)
    assert len(named) > 5
    missing = [
        name
        for name in named
        if not any(
            (base / name.replace(".", "/")).is_dir() or (base / f"{name.replace('.', '/')}.py").exists()
            for base in SOURCES
        )
    ]
    assert missing == []


def test_every_folder_is_named() -> None:
    folders = [path.parent for base in SOURCES for path in base.rglob("__init__.py") if "migrations" not in path.parts]
    inner = {ROOT / "core/epochal/client", ROOT / "core/epochal/protocol"}  # these have a list of their own
    missing = [
        str(folder.relative_to(ROOT))
        for folder in folders
        if folder.parent not in inner and folder.name != "epochal" and str(folder.relative_to(ROOT)) not in PAGE
    ]
    assert missing == []


def test_parts_import_what_the_table_says() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 15
    parts = {folder.removeprefix("core/epochal/") for folder, _ in rows if folder.startswith("core")}
    for folder, named in rows:
        found = {name.split(".")[1] for name in imported((ROOT / folder).rglob("*.py")) if name.startswith("epochal.")}
        own = folder.removeprefix("core/epochal/")
        assert (folder, found & parts - {own}) == (folder, set(re.findall(r"`(\w+)`", named)) - {"errors"})
        assert not {name.split(".")[0] for name in imported((ROOT / folder).rglob("*.py"))} & (
            set(PARTS.values()) - {PARTS.get(folder, "")}
        )


def check_order(room: str, heading: str) -> None:
    section = PAGE.split(f"### {heading}\n")[1]
    drawn = section.split("```text\n")[1].split("```")[0].splitlines()
    ranks = {name: rank for rank, line in enumerate(drawn) for name in re.split(r"\s{2,}", line)[0].split(", ")}
    package = ROOT / "core" / "epochal" / room
    assert [name for name in ranks if not (package / name).is_dir() and not (package / f"{name}.py").exists()] == []

    def place(module: str) -> str:
        parts = module.split("/")
        names = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
        return next(name for name in names if name in ranks)

    wrong = []
    for path in package.rglob("*.py"):
        own = str(path.relative_to(package).with_suffix(""))
        if own == "__init__":
            continue
        for name in imports(path, inside_functions=False):
            if not name.startswith(f"epochal.{room}."):
                continue
            other = name.removeprefix(f"epochal.{room}.").replace(".", "/")
            if not (package / f"{other}.py").exists() and not (package / other).is_dir():
                other = other.rpartition("/")[0]
            if place(other) != place(own) and ranks[place(other)] >= ranks[place(own)]:
                wrong.append(f"{own} imports {other}")
    assert wrong == []


def test_order_within_the_protocol() -> None:
    check_order("protocol", "Protocol")


def test_order_within_the_client() -> None:
    check_order("client", "Client")
