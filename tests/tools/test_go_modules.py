"""The Go programs of the tests: what they share is in one version, and so compiled once."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KUBERNETES = TESTS / "cluster" / "node"
BESIDE = {"coredns": KUBERNETES / "coredns", "collector": TESTS / "tracing" / "collector"}


def versions(module: Path) -> dict[str, str]:
    """The version of each module that is needed, by its path."""
    lines = (module / "go.mod").read_text().splitlines()
    found = (re.fullmatch(r"(?:require)?\s+(\S+) (v\S+)(?: // indirect)?", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_shared_with_kubernetes_is_in_the_same_versions(name: str) -> None:
    """Without that a CPU compiles for two minutes more where nothing is cached yet."""
    ours, kubernetes = versions(BESIDE[name]), versions(KUBERNETES)
    shared = ours.keys() & kubernetes.keys()
    assert len(shared) > 20
    assert {path: ours[path] for path in shared} == {path: kubernetes[path] for path in shared}
