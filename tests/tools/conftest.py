"""The parts that projects for the tools to work on have in common with this one."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def what_tests_share() -> dict[str, str]:
    """The files that all tests need, by path."""
    paths = [
        f"tests/{name}.py"
        for name in (
            "conftest",
            "forking",
            "java",
            "patience",
            "ports",
            "processes",
            "run_report",
            "scheduling",
            "seeds",
        )
    ]
    return {path: (ROOT / path).read_text() for path in paths}
