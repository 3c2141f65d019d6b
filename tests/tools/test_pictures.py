"""The pictures: the files are what the tools draw, from a run as it really happens, and no text touches another."""

import json
import re
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import pytest

import draw_pictures
import record_time
from epochal.client.catalog.catalog import CatalogClient
from svg import Area, Canvas, LayoutError

NAMES = sorted(draw_pictures.pictures())


def shows_what_the_picture_is_for(events: list[dict[str, Any]]) -> None:
    """A frontier that waits for the slowest writer, an epoch that becomes whole, and one that is aborted."""
    given = [(event["time"], event["what"], event["records"]) for event in events if event["who"] == "reader"]
    assert given == [(1, "whole", 3), (2, "aborted", 0), (3, "whole", 2)]
    assert [event["time"] for event in events if event["who"] == "frontier"] == [1, 2, 3, 4]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    kinds = [(event["who"], event["what"], event["time"]) for event in events]
    for writer in ("w1", "w2"):  # each had gone on to 2 while nothing was complete
        assert kinds.index((writer, "append", 2)) < kinds.index(("reader", "whole", 1))
    assert kinds.index(("w3", "fail", 2)) < kinds.index(("reader", "aborted", 2))


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_what_is_drawn(name: str) -> None:
    committed = (draw_pictures.PICTURES / name).read_text(encoding="utf-8")
    assert committed == draw_pictures.pictures()[name](), "run `make pictures`"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_for_light_and_dark_and_loads_nothing(name: str) -> None:
    drawn = draw_pictures.pictures()[name]()
    root = ElementTree.fromstring(drawn)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "@media (prefers-color-scheme: dark)" in drawn
    assert re.findall(r"https?://|@import|url\((?!#)", drawn.replace("http://www.w3.org/2000/svg", "")) == []
    style = re.search(r"<style>(.*)</style>", drawn, re.DOTALL)
    assert style is not None
    used = set(re.findall(r'class="([a-z]+)"', drawn))
    light, dark = style[1].split("@media")
    assert {each for each in used if f".{each}" not in light or f".{each}" not in dark} == set()


def test_nothing_else_is_among_the_pictures() -> None:
    assert sorted(path.name for path in draw_pictures.PICTURES.iterdir()) == sorted([*NAMES, "time.json"])


def test_each_picture_is_on_a_page() -> None:
    pages = [draw_pictures.ROOT / "README.md", *(draw_pictures.ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in NAMES if f"pictures/{name})" not in text and f'pictures/{name}"' not in text] == []


def test_the_recorded_run_shows_what_the_picture_is_for() -> None:
    shows_what_the_picture_is_for(json.loads((draw_pictures.PICTURES / "time.json").read_text()))


@pytest.mark.rule("S2", "E4")
async def test_a_run_happens_as_it_is_drawn(services) -> None:
    try:
        events = [asdict(event) for event in await record_time.record(services.url, pace=0.0)]
    finally:
        async with CatalogClient(services.url) as catalog:
            await catalog.delete(record_time.NAMESPACE, record_time.NAME)
    shows_what_the_picture_is_for(events)


def test_a_text_that_leaves_the_canvas_is_refused() -> None:
    with pytest.raises(LayoutError, match="leaves the canvas: a long text"):
        Canvas(100, 40, "").text(60, 20, "a long text")


def test_texts_that_touch_are_refused() -> None:
    canvas = Canvas(200, 40, "")
    canvas.text(10, 20, "one")
    with pytest.raises(LayoutError, match=r"these texts touch: one \| two"):
        canvas.text(30, 24, "two")


def test_a_text_that_does_not_fit_into_its_box_is_refused() -> None:
    canvas = Canvas(300, 100, "")
    with pytest.raises(LayoutError, match="wider than its box: a frontier"):
        canvas.box(Area(10, 10, 60, 60), ["a frontier"])
    with pytest.raises(LayoutError, match="higher than their box"):
        canvas.box(Area(10, 10, 200, 30), ["one", "two"])
