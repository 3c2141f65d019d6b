"""The page on testing names tests that exist: a table of what is shown is worth no more than its last renaming."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, test in named:
        assert re.search(rf"^(async )?def {test or 'test_'}", (ROOT / path).read_text(), re.MULTILINE), (path, test)
