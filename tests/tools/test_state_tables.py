"""Pages that draw a machine's states have them as the code does."""

import runpy
from enum import StrEnum
from pathlib import Path

import pytest

from epochal.protocol.transitions import Transitions

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "state_tables.py"))


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    DARK = "dark"


class Cause(StrEnum):
    TIME_IS_UP = "a minute has passed"
    POWER_FAILED = "the power fails"


LIGHTS = Transitions(
    Light.RED,
    {
        Light.RED: {Cause.TIME_IS_UP: Light.GREEN, Cause.POWER_FAILED: Light.DARK},
        Light.GREEN: {Cause.TIME_IS_UP: Light.RED, Cause.POWER_FAILED: Light.DARK},
    },
)


def test_every_page_has_the_states_that_the_code_has() -> None:
    different = [page.name for page, text in TOOL["pages"]().items() if page.read_text() != text]
    assert not different, f"run python tools/state_tables.py: {different} differ from the tables in the code"


def test_the_diagram_has_each_way_between_states_that_can_be_left() -> None:
    assert TOOL["diagram"](LIGHTS) == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> red",
        "    red --> green: time is up",
        "    green --> red: time is up",
        "```",
    ]


def test_the_table_has_every_row_and_joins_states_that_an_event_leads_to_the_same_one() -> None:
    assert TOOL["table"](LIGHTS)[2:] == [
        "| red | time is up | a minute has passed | green |",
        "| red, green | power failed | the power fails | dark |",
        "| green | time is up | a minute has passed | red |",
    ]


def test_a_page_without_a_place_for_its_states_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for the states of 'follower'"):
        TOOL["drawn"]("a page\n", ["follower"])


def test_a_drawing_that_differs_is_replaced_and_what_is_around_it_stays() -> None:
    before = "above\n<!-- states: follower -->\nan old one\n<!-- end of states -->\nbelow\n"
    after = TOOL["drawn"](before, ["follower"])
    assert after.startswith("above\n")
    assert after.endswith("\nbelow\n")
    assert "an old one" not in after
    assert "greeting --> joining" in after
    assert TOOL["drawn"](after, ["follower"]) == after
