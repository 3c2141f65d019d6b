"""A reader of whole epochs whose own subscription finds out, while it waits, that events are gone."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.protocol.epochs.rings import cursor, ring_of

from epochal.protocol.topics.filter import EVERYTHING
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.relay.epochs.question import Question
from epochal_publisher.relay.epochs.session import Session


class Source:
    """A subscription whose publisher has lost everything before time 400."""

    def __init__(self) -> None:
        self.complete, self.sending = False, 0
        self._at, self._gaps = cursor(128), list[str]()

    def cursor(self) -> Any:
        return self._at

    has_item = False

    @property
    def has_gap(self) -> bool:
        return bool(self._gaps)

    def gap(self) -> str:
        return self._gaps.pop()

    async def fetch(self, _seconds: float) -> None:
        if self._at != cursor(400):
            self._at, self._gaps = cursor(400), ["gap"]


@pytest.mark.rule("E17")
async def test_who_is_past_a_gap_where_the_ring_is_is_notified_of_it_first() -> None:
    _, ring = ring_of(("four hundred", cursor(401)), start=cursor(400))
    feeds: Any = SimpleNamespace(check_open=lambda: None, settings=SimpleNamespace(frontier_interval=1.0))
    feed: Any = SimpleNamespace(error=None, news=asyncio.sleep)
    places: Any = None
    question = Question(cursor(128), "", "since", EVERYTHING, 0.0, Form.SERVER_SENT)
    session = Session(feeds, feed, ring, question, places, "here")  # type: ignore[arg-type]  # texts stand for outcomes
    session._own = Source(), AsyncExitStack()  # type: ignore[assignment]
    async with session:
        assert session.alone
        given: list[Any] = [await session.next(1.0) for _ in range(2)]
        assert given == ["gap", "four hundred"]
