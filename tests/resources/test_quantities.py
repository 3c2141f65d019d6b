"""Amounts: what is read, what is refused, and that writing and reading agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.resources.quantities import format_bytes, format_duration, parse_bytes, parse_duration, same_amount


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("512", 512), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 << 29), ("2T", 2 * 10**12)]
)
def test_reads_sizes(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "Mi", "-1Mi", "1mi", "1 Mi", "1Gb", "0.3", "1e3", "1" * 30, "٣Mi", "1Mi\n"])
def test_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="256Mi"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("24h", 86400.0), ("1h30m", 5400.0), ("1m500ms", 60.5)]
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1.5h", "1d", "1s1m", "1 s", "30S", "٣s", "1s\n"])
def test_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("written", "by_kubernetes"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("2000000000", "2G"),
        ("1000P", "1E"),
        ("1024Pi", "1Ei"),
        ("0.1m", "1m"),
        ("0.0001", "1m"),
        ("0.0", "0"),
    ],
)
def test_amounts_are_the_same_in_the_form_of_kubernetes(written: str, by_kubernetes: str) -> None:
    assert same_amount(written, by_kubernetes)


@pytest.mark.parametrize(("one", "other"), [("1Gi", "1G"), ("1", "1m"), ("1", "1e0"), ("500m", "501m"), ("x", "y")])
def test_amounts_that_differ_or_cannot_be_read_are_not_the_same(one: str, other: str) -> None:
    assert not same_amount(one, other)


@given(st.integers(min_value=0, max_value=2**60))
def test_sizes_survive_writing(number: int) -> None:
    assert parse_bytes(format_bytes(number)) == number


@given(st.integers(min_value=0, max_value=10**12))
def test_durations_survive_writing(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000
