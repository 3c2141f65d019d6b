"""A reader of whole epochs whose own subscription finds out, while it waits or encodes, that events are gone."""

import asyncio
import threading
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.patience import PATIENCE
from tests.protocol.epochs.rings import cursor, ring_of

from epochal.client.subscriber.delivery import GIVEN
from epochal.client.subscriber.values import Epoch
from epochal.protocol.topics.filter import EVERYTHING
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.relay.epochs.question import Question
from epochal_publisher.relay.epochs.session import Session
from epochal_publisher.relay.epochs.source import SMALL
from epochal_publisher.relay.epochs.source import Source as RealSource


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


@pytest.mark.rule("F18")
async def test_a_reader_that_has_all_of_history_does_not_wait_for_more_as_long_as_for_history() -> None:
    _, ring = ring_of(start=cursor(400))
    feeds: Any = SimpleNamespace(check_open=lambda: None, settings=SimpleNamespace(frontier_interval=1.0))
    waits: list[float] = []

    async def news(seconds: float) -> None:
        waits.append(seconds)

    feed: Any = SimpleNamespace(error=None, news=news)
    question = Question(cursor(128), "", "since", EVERYTHING, 0.0, Form.LINES)
    session = Session(feeds, feed, ring, question, cast(Any, None), "here")  # type: ignore[arg-type]  # as above
    session._own = Source(), AsyncExitStack()  # type: ignore[assignment]
    async with session:
        given: list[Any] = [await session.next(1000.0)]
        assert given == ["gap"]
        assert await session.next(1000.0) is None
        assert (session.alone, waits) == (False, [])
        assert await session.next(5.0) is None
        assert [round(seconds) for seconds in waits] == [5]


class Encoder:
    """Encodes when it may, as a large epoch takes time on its thread."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def bodies(self, _item: Any) -> tuple[bytes, ...]:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        return (b'{"kind":"epoch"}',)


class Losing:
    """A subscription with one large epoch, which loses what comes after that."""

    def __init__(self) -> None:
        self.hand: Any = None
        self.lost, self.held_bytes = False, SMALL + 1

    def epochs(self) -> Any:
        return self

    async def fill(self, hand: Any) -> None:
        hand.item = Epoch(7, (SimpleNamespace(payload=bytes(SMALL + 1)),))  # type: ignore[arg-type]  # all that is read
        self.hand = hand

    def gaps(self) -> list[Any]:
        return []

    def cursor(self) -> Any:
        if self.hand is not None and self.hand.state == GIVEN:
            self.held_bytes = 0
            return cursor(400) if self.lost else cursor(8)
        return cursor(7)


@pytest.mark.rule("E17", "F18")
async def test_the_id_of_an_epoch_is_before_a_gap_that_is_found_while_the_epoch_is_encoded() -> None:
    subscription, encoder = Losing(), Encoder()
    source = RealSource(subscription, encoder, asyncio.Lock())  # type: ignore[arg-type]
    await source.fetch(1.0)
    taking = asyncio.create_task(source.take())
    assert await asyncio.to_thread(encoder.begun.wait, PATIENCE)
    held, subscription.lost = source.held_bytes, True
    encoder.may_end.set()
    outcome, after = await taking
    assert (after, outcome.id) == (cursor(8), cursor(8).to_json()), "a reader that is lost here finds the gap again"
    assert (held, source.held_bytes) == (SMALL + 1, 0), "what is being encoded takes memory"
