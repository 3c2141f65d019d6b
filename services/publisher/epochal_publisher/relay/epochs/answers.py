"""`GET /v1/epochs`: whole epochs as JSON lines with long polls, and as server-sent events.

A slow reader holds up only its own answer: at most a few pieces are written ahead of what it has read. Sources: rules
E15-E18, F18; Q5, Q7.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from aiohttp import web

from epochal.errors import EpochalError
from epochal.protocol.subscriber.cursor import Cursor
from epochal.protocol.times import Time, TimeShape
from epochal_publisher.http.event_encoding import Form
from epochal_publisher.http.reader_places import GaveWay, ReaderPlaces
from epochal_publisher.relay.epochs import encoding, errors
from epochal_publisher.relay.epochs.encoding import Outcome, Piece
from epochal_publisher.relay.epochs.feeds import Feeds
from epochal_publisher.relay.epochs.question import Question, read_question
from epochal_publisher.relay.epochs.sending import Sending
from epochal_publisher.relay.epochs.session import Session
from epochal_publisher.relay.epochs.settings import RelayHttpSettings
from epochal_publisher.relay.epochs.source import OpenSubscription

_STILL_HERE = b": still here\n\n"
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_LOOK = 1.0
"""Server-sent events wait so many seconds for the first outcome of history, so that an error can still be a status."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the stream's manifest says of payloads and times."""

    encoding: str
    shape: TimeShape


class EpochReaders:
    """Answers GETs of epochs."""

    def __init__(self, settings: RelayHttpSettings, facts: StreamFacts, open_subscription: OpenSubscription) -> None:
        self._settings = settings
        self._shape = facts.shape
        self.sending = Sending(settings.ring_bytes)
        self.feeds = Feeds(settings, facts.encoding, open_subscription)
        self.places = ReaderPlaces(
            settings.max_readers, settings.variable("max_readers"), settings.max_readers_per_address
        )
        self.catch_ups = ReaderPlaces(settings.max_catch_ups, settings.variable("max_catch_ups"))

    @property
    def shared(self) -> int:
        """How many answers have no subscription of their own: the relay counts each subscription as a subscriber."""
        return len(self.places) - len(self.feeds) - len(self.catch_ups)

    async def close(self) -> None:
        """End all waits. Outcomes that are being written are written to their end."""
        self.catch_ups.end_all()
        await self.feeds.close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The epochs after a cursor. Raises `EpochalError`."""
        question = read_question(request, self._shape, self._settings.max_wait)
        address = request.remote or ""
        one = _Answer(request, question, self._settings, self.sending)
        try:
            async with self.places.take(address), self.feeds.followed(question.topics, address) as feed:
                ring = await feed.begun()
                async with Session(self.feeds, feed, ring, question, self.catch_ups, address) as session:
                    return await one.of(session)
        except GaveWay:
            self.feeds.check_open()
            if one.begun is None:
                raise
            if question.form is not Form.SERVER_SENT:  # server-sent events just end, and the client connects again
                request.protocol.cut("max_readers")  # type: ignore[attr-defined]  # a part of a body is no answer
            return one.begun


class _Overtaken(Exception):
    """The ring has dropped the epoch that is being sent."""


class _Answer:
    """One answer. `begun` is its response once a part of that was sent."""

    def __init__(self, request: web.Request, question: Question, settings: RelayHttpSettings, sending: Sending) -> None:
        self.begun: web.StreamResponse | None = None
        self._sending = sending
        self._request = request
        self._question = question
        self._settings = settings
        self._clock = asyncio.get_running_loop().time
        self._frontier: tuple[Time, ...] | None = None
        """The frontier that was sent last, in server-sent events."""
        self._written = self._clock()

    async def of(self, session: Session) -> web.StreamResponse:
        """Answer with the outcomes of the session."""
        lines = self._question.form is Form.LINES
        outcomes = await (self._gathered(session) if lines else self._first(session))
        if session.over and not outcomes and isinstance(self._question.since, Cursor):
            return web.Response(status=204)  # so a browser does not connect again
        response = self.begun = web.StreamResponse(headers={"Content-Type": self._question.form, **_NO_STORE})
        with suppress(ConnectionError):  # the reader left, or was disconnected because it did not read
            await response.prepare(self._request)
            if lines:
                last = encoding.complete if session.over else encoding.frontier
                with self._counted(session, outcomes):
                    for line in (line for outcome in (*outcomes, last(session.cursor)) for line in outcome.lines()):
                        await _write(response, line)
            else:
                await self._follow(response, session, outcomes)
            await response.write_eof()
        return response

    async def _gathered(self, session: Session) -> list[Outcome]:
        """The outcomes that there are, up to a bound; waits for the first of them, and for history."""
        until = self._clock() + self._question.wait
        patience = max(until, self._clock() + self._settings.join_timeout)
        outcomes, size = list[Outcome](), 0

        def ends() -> float:
            return patience if not session.current else 0 if outcomes else until

        while size < self._settings.answer_bytes:
            try:
                outcome = await session.next(ends() - self._clock())
            except EpochalError:
                if not outcomes:
                    raise
                break  # the next request gets the error
            if outcome is not None:
                outcomes.append(outcome)
                size += outcome.size
            elif session.over or self._clock() >= ends():
                break
        return outcomes

    async def _first(self, session: Session) -> list[Outcome]:
        """The first outcome of history, if it comes soon: an error of history can be a status then."""
        outcome = await session.next(_LOOK if session.alone else 0)
        return [] if outcome is None else [outcome]

    async def _follow(self, response: web.StreamResponse, session: Session, outcomes: Sequence[Outcome]) -> None:
        """Send outcomes as they come, until the stream is complete or an error ends the answer."""
        await response.write(b"retry: 1000\n\n")
        try:
            for outcome in outcomes:
                await self._send(response, session, outcome)
            while not session.over:
                heartbeat = self._written + self._settings.sse_heartbeat
                begins = self._frontier is None and not session.alone  # it needs an id, in case its connection breaks
                new = await session.next(0 if begins else heartbeat - self._clock())
                if new is not None:
                    await self._send(response, session, new)
                elif not session.over:
                    await self._quiet(response, session, heartbeat)
            await self._send(response, session, encoding.complete(session.cursor))
        except _Overtaken:
            return  # the client connects again, with the id before this epoch
        except EpochalError as error:
            if not error.retryable:
                for event in encoding.refused(json.loads(errors.answer(error).text or "{}")).events():
                    await _write(response, event)

    async def _quiet(self, response: web.StreamResponse, session: Session, heartbeat: float) -> None:
        """Send the frontier if it has moved; there is no outcome now."""
        if not session.alone and session.cursor.frontier != self._frontier:
            await self._send(response, session, encoding.frontier(session.cursor))
            self._frontier = session.cursor.frontier
        elif self._clock() >= heartbeat:
            await response.write(_STILL_HERE)
            self._written = self._clock()

    async def _send(self, response: web.StreamResponse, session: Session, outcome: Outcome) -> None:
        with self._counted(session, [outcome]):
            for number, event in enumerate(outcome.events()):
                if number and session.overtaken:  # else a slow reader would keep in memory what the ring has dropped
                    raise _Overtaken
                await _write(response, event)
        self._written = self._clock()

    def _counted(self, session: Session, outcomes: Sequence[Outcome]) -> AbstractContextManager[None]:
        """Count `outcomes` while they are sent. A subscription of the reader's own counts its outcomes itself."""
        return self._sending.to_reader(() if session.alone else outcomes, self._cut)

    def _cut(self) -> None:
        """End the connection: the memory of what is being sent to it is needed for newer epochs."""
        self._request.protocol.cut("ring_bytes")  # type: ignore[attr-defined]


async def _write(response: web.StreamResponse, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        await response.write(piece)
