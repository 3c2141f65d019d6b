"""Plain output: aligned, complete, and harmless to a terminal."""

import json
import math
from datetime import datetime
from decimal import Decimal

import pytest
import yaml

from epochal.cli.failures import describe
from epochal.cli.io.output import (
    as_yaml,
    dumps,
    flat,
    json_value,
    merge_frontiers,
    parse_time,
    plain_lines,
    print_document,
    print_table,
    raw_record,
    show_age,
    show_frontier,
    show_record,
)
from epochal.cli.io.terminal import note
from epochal.errors import StreamError, TimeShapeError
from epochal.protocol.times import TimeShape


def test_lines_are_aligned_without_trailing_blanks() -> None:
    assert plain_lines(["A", "B"], [["1", ""], ["long", "2"]]) == ["A     B", "1", "long  2"]
    assert plain_lines(["A"], []) == ["A"]


def test_nothing_is_cut_off_when_it_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["X"], [["y" * 500]])
    assert capsys.readouterr().out == f"X{' ' * 0}\n{'y' * 500}\n"


def test_control_characters_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["X"], [["\x1b[2J\n"]])
    assert capsys.readouterr().out == "X\n\\x1b[2J\\n\n"
    assert show_record({"a": "\x1b[2J\u202e"}) == '{"a": "\\u001b[2J\\u202e"}'
    assert show_record(b"\x1b\xff") == "\\x1b\\xff"


HOSTILE = "\x1b]0;owned\x07 \x9b2J \u202egnp.exe \x7f \U000e0001 é 語"


def test_json_and_yaml_steer_no_terminal_and_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for text, read in ((dumps([HOSTILE]), json.loads), (as_yaml([HOSTILE]), yaml.safe_load)):
        assert text.replace("\n", "").isprintable()
        assert read(text) == [HOSTILE]
    assert dumps(["é 語"]) == '["é 語"]'
    assert as_yaml(["é 語"]) == "- é 語\n"
    for in_yaml in (False, True):
        print_document({"a": {HOSTILE: HOSTILE}}, in_yaml)
        assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_errors_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note(describe(StreamError(f"{HOSTILE}\nsecond line")))
    error = capsys.readouterr().err
    assert error.splitlines()[1] == "second line"
    assert error.replace("\n", "").isprintable()
    assert "\\x1b]0;owned\\x07 \\x9b2J \\u202egnp.exe" in error


def test_frontiers_of_segments_are_merged() -> None:
    assert merge_frontiers([[3], [5]]) == [3]
    assert sorted(merge_frontiers([[(0, 2)], [(1, 0), (2, 2)]]) or []) == [(0, 2), (1, 0)]
    assert merge_frontiers([[3], None]) is None
    assert merge_frontiers([[3], []]) == [3]
    assert show_frontier(merge_frontiers([[], []])) == "{}"


@pytest.mark.parametrize(("since", "age"), [("", "-"), ("x", "-"), ("2999-01-01T00:00:00", "0s")])
def test_odd_ages(since: str, age: str) -> None:
    assert show_age(since) == age


def test_documents_are_flattened() -> None:
    assert flat({"a": {"b": [1], "c": {}}}) == [("a.b", "[1]"), ("a.c", "{}")]


@pytest.mark.parametrize(("text", "time"), [("(1, 2)", (1, 2)), ("[1,2]", (1, 2)), (" ( 1,2,) ", (1, 2))])
def test_times_are_read(text: str, time: tuple[int, int]) -> None:
    assert parse_time(text, TimeShape.parse("(int, int)")) == time


@pytest.mark.parametrize(
    "text", ["", "x", "5", "(1, 2, 3)", "(1, -2)", "(1, 2", "1.5", "true", "(" * 100_000, "9" * 5000]
)
def test_times_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(TimeShapeError, match="int, int"):
        parse_time(text, TimeShape.parse("(int, int)"))


def test_records_are_shown() -> None:
    assert json_value({"a": b"\xff"}) == {"a": "\\xff"}
    assert raw_record(b"\xff") == b"\xff"
    assert raw_record({"é": 1}) == '{"é": 1}'.encode()


def test_every_record_has_a_json_form() -> None:
    record = {b"\xff": datetime(2013, 1, 1, 5), (1, 2): -math.inf, 3: Decimal("1.50"), "deep": [{None: math.nan}]}
    assert json.loads(raw_record(record)) == {
        "\\xff": "2013-01-01T05:00:00",
        "[1, 2]": "-Infinity",
        "3": "1.50",
        "deep": [{"null": "NaN"}],
    }
