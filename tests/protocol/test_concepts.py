"""The examples in docs/concepts.md are true."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "concepts.md"


def test_the_examples_of_the_concepts():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0
