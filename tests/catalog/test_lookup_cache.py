"""Answers that are kept as bytes."""

import json
from itertools import count

import pytest

from epochal_catalog.api.lookup_cache import AGE, Remembered


@pytest.fixture
def made() -> "count[int]":
    return count()


def test_an_answer_is_made_once_while_nothing_changes(made: "count[int]") -> None:
    remembered = Remembered()
    answers = {remembered.answer("a", 1, 10.0 + later, lambda: next(made)) for later in (0, AGE / 2, AGE * 0.9)}
    assert answers == {b"0"}


def test_a_changed_state_is_shown_at_once(made: "count[int]") -> None:
    remembered = Remembered()
    assert [json.loads(remembered.answer("a", version, 10.0, lambda: next(made))) for version in (1, 2, 2)] == [0, 1, 1]


def test_time_that_passes_is_shown(made: "count[int]") -> None:
    remembered = Remembered()
    assert [remembered.answer("a", 1, now, lambda: next(made)) for now in (0.0, AGE)] == [b"0", b"1"]


def test_each_key_has_its_own_answer(made: "count[int]") -> None:
    remembered = Remembered()
    assert [remembered.answer(key, 1, 10.0, lambda: next(made)) for key in "aba"] == [b"0", b"1", b"0"]
