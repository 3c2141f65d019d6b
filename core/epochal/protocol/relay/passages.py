"""Requests for history that a relay passes on, because it has not all that they ask for (F15).

Each has a connection of its own upstream, with the asker's credit, so a slow one delays nobody. It says hello there
first: the answer to that names the incarnation, and what is of another one than the asker's must not reach it.

Sources: E24, F15.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epochal.errors import RelayEnded, RemoteProtocolError, Unavailable
from epochal.protocol import messages as m
from epochal.protocol.publisher.effects import SendAnswers
from epochal.protocol.publisher.server import MAX_CREDIT
from epochal.protocol.relay.effects import Forward, HangUp

_HELLO, _SINCE = 1, 2
"""The numbers of the requests on a passage's own connection."""


@dataclass(slots=True)
class _Passage:
    number: int
    peer: bytes
    since: m.Since
    credit: int
    """Of the asker, not passed on yet."""
    heard: float
    """When anything came from either side."""
    open: bool = False
    """Whether the request was sent."""
    left: int = 0
    """Events that the last chunk announced and that have not come."""
    ends: bool = False
    """Whether that is the last chunk."""


class Passages:
    """The requests under way at one segment; at most `most`, and `most_each` of one peer."""

    def __init__(
        self,
        stream: str,
        fresh_nonce: Callable[[], bytes],
        emit: Callable[[SendAnswers | Forward | HangUp], None],
        *,
        most: int,
        most_each: int,
        ttl: float,
    ) -> None:
        self._stream = stream
        self._fresh_nonce = fresh_nonce
        self._emit = emit
        self._most, self._most_each, self._ttl = most, most_each, ttl
        self._by_request: dict[tuple[bytes, int], _Passage] = {}
        self._by_number: dict[int, _Passage] = {}
        self._of_peer = Counter[bytes]()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def begin(self, peer: bytes, since: m.Since, now: float) -> None:
        """Pass on a request. Raises `Unavailable` for one too many, and `RemoteProtocolError`."""
        if (peer, since.request) in self._by_request:
            raise RemoteProtocolError(f"request {since.request} is under way; each has a number of its own")
        if len(self) >= self._most or self._of_peer[peer] >= self._most_each:
            raise Unavailable("the relay passes on too many requests for history; try again")
        self._numbers += 1
        passage = _Passage(self._numbers, peer, since, min(since.credit, MAX_CREDIT), now)
        self._by_request[peer, since.request] = self._by_number[passage.number] = passage
        self._of_peer[peer] += 1
        hello = m.Hello(_HELLO, (m.VERSION,), self._stream, since.segment, self._fresh_nonce(), ((), ()))
        self._emit(Forward(passage.number, hello))

    def credit(self, peer: bytes, credit: m.Credit, now: float) -> None:
        """An asker can take more; of a request that is not under way here, nothing happens."""
        passage = self._by_request.get((peer, credit.request))
        if passage is None:
            return
        passage.heard = now
        if passage.open:
            self._emit(Forward(passage.number, m.Credit(_SINCE, credit.chunks)))
        else:
            passage.credit = min(passage.credit + credit.chunks, MAX_CREDIT)

    def answered(self, number: int, messages: Sequence[m.Message], incarnation: int, now: float) -> None:
        """What has come back on a connection in one piece; `incarnation` is the one that the askers know."""
        passage = self._by_number.get(number)
        if passage is None:
            return
        passage.heard = now
        if not passage.open:
            self._welcomed(passage, messages[0], incarnation)
            return
        answers = [self._renumbered(passage, message) for message in messages]
        if None in answers:
            self._refuse(passage, Unavailable.code, "the publisher's answer was not understood; ask again")
            return
        self._emit(SendAnswers(passage.peer, tuple([answer for answer in answers if answer is not None])))
        if passage.ends and not passage.left:
            self._end(passage)

    def _welcomed(self, passage: _Passage, message: m.Message, incarnation: int) -> None:
        if isinstance(message, m.Refused):
            self._refuse(passage, message.code, message.detail)
        elif not isinstance(message, m.Welcome):
            self._refuse(passage, Unavailable.code, "the publisher's answer was not understood; ask again")
        elif message.incarnation != incarnation:
            self._refuse(passage, RelayEnded.code, "the publisher is another one now; join again")
        else:
            passage.open = True
            since = passage.since._replace(request=_SINCE, credit=passage.credit)
            self._emit(Forward(passage.number, since))

    @staticmethod
    def _renumbered(passage: _Passage, message: m.Message) -> m.Message | None:
        """A part of an answer as its asker knows it; None for what is none."""
        request = passage.since.request
        match message:
            case m.Data() | m.Frontier() | m.Aborted() if passage.left:
                passage.left -= 1
                return message
            case m.Chunk() if message.request == _SINCE:
                passage.left, passage.ends = message.events, message.last
                return message._replace(request=request)
            case m.Opening() if message.request == _SINCE:
                return message._replace(request=request)
            case m.Truncated() if message.request == _SINCE:
                passage.left, passage.ends = 0, True
                return message._replace(request=request)
            case m.Refused() if message.op == _SINCE:
                passage.left, passage.ends = 0, True
                return message._replace(op=request)
        return None

    def cut(self, number: int) -> None:
        """A connection is lost."""
        passage = self._by_number.get(number)
        if passage is not None:
            self._refuse(passage, Unavailable.code, "the publisher was lost while it answered; ask again")

    def end_all(self, code: str, detail: str) -> None:
        """None of them can go on."""
        for passage in list(self._by_number.values()):
            self._refuse(passage, code, detail)

    def forget(self, now: float) -> None:
        """Give up those of which nothing was heard for long."""
        for passage in [each for each in self._by_number.values() if now - each.heard > self._ttl]:
            self._end(passage)

    def _refuse(self, passage: _Passage, code: str, detail: str) -> None:
        self._emit(SendAnswers(passage.peer, (m.Refused(passage.since.request, code, detail),)))
        self._end(passage)

    def _end(self, passage: _Passage) -> None:
        del self._by_request[passage.peer, passage.since.request], self._by_number[passage.number]
        self._of_peer[passage.peer] -= 1
        if not self._of_peer[passage.peer]:
            del self._of_peer[passage.peer]
        self._emit(HangUp(passage.number))
