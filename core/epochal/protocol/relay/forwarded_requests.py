"""Requests for history that a relay forwards upstream, because its memory does not have all that they ask for (F15).

Each has its own connection upstream, with the credit of the peer that asks, so a slow peer delays no other. The relay
says hello there first, because the welcome names the incarnation: events of another incarnation than the one that the
peer has joined must not reach it.

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
"""The request numbers of the hello and of the forwarded request, on the request's own connection."""


@dataclass(slots=True)
class _ForwardedRequest:
    number: int
    peer: bytes
    since: m.Since
    credit: int
    """Credit of the peer that asks, which was not forwarded yet."""
    heard: float
    """When a message last came from either side."""
    open: bool = False
    """Whether the request was sent."""
    left: int = 0
    """Events that the newest chunk announced and that have not come yet."""
    ends: bool = False
    """Whether the newest chunk is the last one."""


class ForwardedRequests:
    """The forwarded requests of one segment: at most `most`, and `most_each` of one peer."""

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
        self._by_request: dict[tuple[bytes, int], _ForwardedRequest] = {}
        self._by_number: dict[int, _ForwardedRequest] = {}
        self._of_peer = Counter[bytes]()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def begin(self, peer: bytes, since: m.Since, now: float) -> None:
        """Forward a request. Raises `Unavailable` above the limits, and `RemoteProtocolError` for a wrong one."""
        if (peer, since.request) in self._by_request:
            raise RemoteProtocolError(f"request {since.request} is under way; each has a number of its own")
        if len(self) >= self._most or self._of_peer[peer] >= self._most_each:
            raise Unavailable("the relay passes on too many requests for history; try again")
        self._numbers += 1
        forwarded = _ForwardedRequest(self._numbers, peer, since, min(since.credit, MAX_CREDIT), now)
        self._by_request[peer, since.request] = self._by_number[forwarded.number] = forwarded
        self._of_peer[peer] += 1
        hello = m.Hello(_HELLO, (m.VERSION,), self._stream, since.segment, self._fresh_nonce(), ((), ()))
        self._emit(Forward(forwarded.number, hello))

    def credit(self, peer: bytes, credit: m.Credit, now: float) -> None:
        """Pass on credit of a peer; does nothing for a request that is not forwarded."""
        forwarded = self._by_request.get((peer, credit.request))
        if forwarded is None:
            return
        forwarded.heard = now
        if forwarded.open:
            self._emit(Forward(forwarded.number, m.Credit(_SINCE, credit.chunks)))
        else:
            forwarded.credit = min(forwarded.credit + credit.chunks, MAX_CREDIT)

    def answered(self, number: int, messages: Sequence[m.Message], incarnation: int, now: float) -> None:
        """Handle messages that came together on one connection; `incarnation` is the one that peers have joined."""
        forwarded = self._by_number.get(number)
        if forwarded is None:
            return
        forwarded.heard = now
        if not forwarded.open:
            self._welcomed(forwarded, messages[0], incarnation)
            return
        answers = [self._renumbered(forwarded, message) for message in messages]
        if None in answers:
            self._refuse(forwarded, Unavailable.code, "the publisher's answer was not understood; ask again")
            return
        self._emit(SendAnswers(forwarded.peer, tuple([answer for answer in answers if answer is not None])))
        if forwarded.ends and not forwarded.left:
            self._end(forwarded)

    def _welcomed(self, forwarded: _ForwardedRequest, message: m.Message, incarnation: int) -> None:
        if isinstance(message, m.Refused):
            self._refuse(forwarded, message.code, message.detail)
        elif not isinstance(message, m.Welcome):
            self._refuse(forwarded, Unavailable.code, "the publisher's answer was not understood; ask again")
        elif message.incarnation != incarnation:
            self._refuse(forwarded, RelayEnded.code, "the publisher is another one now; join again")
        else:
            forwarded.open = True
            since = forwarded.since._replace(request=_SINCE, credit=forwarded.credit)
            self._emit(Forward(forwarded.number, since))

    @staticmethod
    def _renumbered(forwarded: _ForwardedRequest, message: m.Message) -> m.Message | None:
        """A part of an answer with the request number of the peer; None for a message that is no part of one."""
        request = forwarded.since.request
        match message:
            case m.Data() | m.Frontier() | m.Aborted() if forwarded.left:
                forwarded.left -= 1
                return message
            case m.Chunk() if message.request == _SINCE:
                forwarded.left, forwarded.ends = message.events, message.last
                return message._replace(request=request)
            case m.Opening() if message.request == _SINCE:
                return message._replace(request=request)
            case m.Truncated() if message.request == _SINCE:
                forwarded.left, forwarded.ends = 0, True
                return message._replace(request=request)
            case m.Refused() if message.op == _SINCE:
                forwarded.left, forwarded.ends = 0, True
                return message._replace(op=request)
        return None

    def cut(self, number: int) -> None:
        """End a request whose connection is lost."""
        forwarded = self._by_number.get(number)
        if forwarded is not None:
            self._refuse(forwarded, Unavailable.code, "the publisher was lost while it answered; ask again")

    def end_all(self, code: str, detail: str) -> None:
        """End all requests."""
        for forwarded in list(self._by_number.values()):
            self._refuse(forwarded, code, detail)

    def forget(self, now: float) -> None:
        """End the requests for which no message has come for too long."""
        for forwarded in [each for each in self._by_number.values() if now - each.heard > self._ttl]:
            self._end(forwarded)

    def _refuse(self, forwarded: _ForwardedRequest, code: str, detail: str) -> None:
        self._emit(SendAnswers(forwarded.peer, (m.Refused(forwarded.since.request, code, detail),)))
        self._end(forwarded)

    def _end(self, forwarded: _ForwardedRequest) -> None:
        del self._by_request[forwarded.peer, forwarded.since.request], self._by_number[forwarded.number]
        self._of_peer[forwarded.peer] -= 1
        if not self._of_peer[forwarded.peer]:
            del self._of_peer[forwarded.peer]
        self._emit(HangUp(forwarded.number))
