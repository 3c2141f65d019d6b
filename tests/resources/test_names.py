"""Names of streams."""

import pytest

from epochal.errors import ManifestError
from epochal.resources.names import parse_stream_name


def test_a_name_alone_is_of_the_namespace_given() -> None:
    assert parse_stream_name("flights") == ("default", "flights")
    assert parse_stream_name("flights", "demo") == ("demo", "flights")
    assert parse_stream_name("jobs/flights", "demo") == ("jobs", "flights")


@pytest.mark.parametrize(
    "text", ["", "/", "demo/", "/x", "a/b/c", "Flights", "1x", "x-", "x_y", "x" * 53, "demo/x\n", "é"]
)
def test_refuses_what_cannot_name_a_stream(text: str) -> None:
    with pytest.raises(ManifestError, match="cannot name a stream") as caught:
        parse_stream_name(text)
    assert caught.value.problems


def test_the_longest_name_is_52_characters() -> None:
    assert parse_stream_name("x" * 52)[1] == "x" * 52
