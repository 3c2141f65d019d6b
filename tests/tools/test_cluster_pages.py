"""docs/cluster-tests.md names what there is, so that nobody searches for where something is shown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster-tests.md").read_text()


def test_all_that_needs_a_node_is_named() -> None:
    cluster = ROOT / "tests" / "cluster"
    modules = [*(cluster / "node_tests").glob("test_*.py"), *cluster.glob("test_*.py")]
    assert len(modules) > 5
    missing = [path.name for path in modules if f"{path.name}`" not in PAGE]
    folders = {path.parent.relative_to(ROOT) for path in cluster.rglob("test_*.py")} - {Path("tests/cluster")}
    assert missing + [str(folder) for folder in sorted(folders) if f"`{folder}`" not in PAGE] == []


def test_all_that_is_named_is_there() -> None:
    places = [ROOT / named for named in re.findall(r"`(tests/cluster[\w/.]*)`", PAGE)]
    node_tests = ROOT / "tests" / "cluster" / "node_tests"
    modules = [node_tests / named for named in re.findall(r"^\| `(test_\w+\.py)` \|", PAGE, re.MULTILINE)]
    assert places
    assert modules
    assert [path for path in (*places, *modules) if not path.exists()] == []
