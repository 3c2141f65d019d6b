"""An environment for programs that must leave nothing behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import marked


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary directory is ours and that marks every process started in it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield {**os.environ, "TMPDIR": str(temporary), "EPOCHAL_TEST_MARK": str(tmp_path)}
    assert marked(str(tmp_path)) == set()
    assert list(temporary.iterdir()) == []
