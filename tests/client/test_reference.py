"""docs/api.md names everything that is promised, and every method of writers and subscriptions."""

import inspect
import re
from pathlib import Path

import pytest
from tests.client.test_blocking import INTERNAL

import epochal

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
NAMED = re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE)


def test_everything_that_is_promised_is_named() -> None:
    errors = {name for name in epochal.__all__ if hasattr(epochal.errors, name)}
    elsewhere = {*errors, "__version__"}  # described as `epochal.errors`, and no name to describe
    assert {name.removeprefix("epochal.") for name in NAMED if name.count(".") == 1} == {*epochal.__all__} - elsewhere
    assert {"epochal.protocol.frontier", "epochal.protocol.progress"} <= {*NAMED}


@pytest.mark.parametrize("kind", [epochal.Writer, epochal.Subscription])
def test_each_public_method_is_listed_once(kind: type) -> None:
    block = PAGE.read_text().split(f"::: epochal.{kind.__name__}\n")[1].split(":::")[0]
    (listed,) = re.findall(r"members: \[(.*)\]", block)
    public = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")} - INTERNAL
    assert set(listed.split(", ")) == public
