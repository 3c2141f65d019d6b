"""The events of a segment over HTTP, for clients without ZeroMQ: present events, long polls, server-sent events.

The follower reads history; HTTP is only here. Each answer is bounded, and so is the number of answers at once. No
answer can delay the others or the protocol: files are read and events are encoded on threads, one answer is encoded at
a time, and payloads that take long to decode are not decoded.

Sources: rules Q1-Q3, Q5, Q7; E9, E13.
"""

from contextlib import suppress
from functools import partial

from aiohttp import web

from epochal.errors import EpochalError, Unavailable
from epochal.protocol.log.history import SegmentState
from epochal.service.errors import SegmentNotFound, ShuttingDown
from epochal_publisher.http import errors, history_query
from epochal_publisher.http.event_encoding import EventEncoder, Form, Placed, opening, server_sent
from epochal_publisher.http.history_query import MOST_EVENTS, Question
from epochal_publisher.http.reader_places import GaveWay, Place, ReaderPlaces
from epochal_publisher.publisher import PublisherProcess
from epochal_publisher.segments.follower import HistoryFollower
from epochal_publisher.settings import Settings

PIECE = 64 * 1024
"""Bytes of events that are sent at once as server-sent events."""
_STILL_HERE = b": still here\n\n"
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventReaders:
    """Answers GETs of events, at most `max_readers` at once, including those that wait."""

    def __init__(self, settings: Settings, publisher: PublisherProcess) -> None:
        self._settings = settings
        self._publisher = publisher
        self.places = ReaderPlaces(settings.max_readers, settings.variable("max_readers"))

    def follower(self, segment: str) -> HistoryFollower:
        """A reader of a segment. Raises `SegmentNotFound`, `Unavailable`, `ShuttingDown`."""
        if segment not in self._settings.segments:
            raise SegmentNotFound(f"this publisher serves {', '.join(self._settings.segments)}, not {segment[:63]!r}")
        if self._publisher.http_closing:
            raise ShuttingDown("this publisher is stopping; ask again in a moment")
        served = self._publisher.segments.get(segment)
        if served is None or served.publisher.gathering or not self._publisher.ready:
            raise Unavailable("this publisher does not own the segment now; ask the catalog who does")
        return HistoryFollower(self._publisher, served)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The events after a position. Raises `EpochalError`."""
        question = history_query.read_question(request, self._settings.max_wait)
        follower = self.follower(request.match_info["segment"])
        try:
            async with self.places.take(request.remote or "") as place:
                state = await follower.open(question.since)
                if question.form is Form.SERVER_SENT:
                    return await self._stream(request, place, question, follower, state)
                return await self._once(request, place, question, follower, state)
        except GaveWay as gave_way:
            if gave_way.begun is None:
                raise
            if question.form is not Form.SERVER_SENT:  # else it ends there, and the client connects again
                request.protocol.cut("max_readers")  # type: ignore[attr-defined]  # a part of a body is no answer
            return gave_way.begun

    # ---- one answer ----

    async def _once(
        self, request: web.Request, place: Place, question: Question, follower: HistoryFollower, state: SegmentState
    ) -> web.StreamResponse:
        first = opening(follower.position, follower.served.publisher.incarnation, state)
        limit, most = question.limit, self._settings.answer_bytes
        events = await read_on(follower, limit, most)
        if not events and question.wait and await follower.news(question.wait):
            events = await read_on(follower, limit, most)
        encoder = EventEncoder(self._publisher.encoding)
        encode = encoder.lines if question.form is Form.LINES else encoder.packed
        body = await self._publisher.encode(lambda: encode(first, events))
        response = web.Response(body=body, headers={"Content-Type": question.form, **_NO_STORE})
        place.begun = response
        with suppress(ConnectionError):  # sent here, so that it counts as under way until the client has taken it
            await response.prepare(request)
            await response.write_eof()
        return response

    # ---- server-sent events ----

    async def _stream(
        self, request: web.Request, place: Place, question: Question, follower: HistoryFollower, state: SegmentState
    ) -> web.StreamResponse:
        if question.resumes and follower.complete:
            return web.Response(status=204)  # so a browser does not connect again
        response = web.StreamResponse(headers={"Content-Type": Form.SERVER_SENT, **_NO_STORE})
        first = opening(follower.position, follower.served.publisher.incarnation, state)
        place.begun = response
        with suppress(ConnectionError):  # it left, or was disconnected because it did not read
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n" + server_sent("opening", first, follower.position))
            await self._follow(response, follower)
            await response.write_eof()
        return response

    async def _follow(self, response: web.StreamResponse, follower: HistoryFollower) -> None:
        """Write every event as it comes, until the stream completes, the publisher stops, or the client leaves."""
        encoder = EventEncoder(self._publisher.encoding)
        try:
            while not follower.complete:
                events = await read_on(follower, MOST_EVENTS, PIECE)
                if events:
                    await response.write(await self._publisher.encode(partial(encoder.server_sent, events)))
                elif not await follower.news(self._settings.sse_heartbeat):
                    await response.write(_STILL_HERE)
            complete = {"kind": "complete", "position": list(follower.position)}
            await response.write(server_sent("complete", complete, follower.position))
        except Unavailable:
            return  # the client connects again, to the next owner
        except EpochalError as error:
            refusal = errors.answer(error).text or "{}"
            await response.write(b"event: refused\ndata: " + refusal.encode() + b"\n\n")


async def read_on(follower: HistoryFollower, max_events: int, max_bytes: int) -> list[Placed]:
    """The next events with their positions."""
    events = await follower.next(max_events, max_bytes)
    return [(follower.position_of(event.seq), event) for event in events]
