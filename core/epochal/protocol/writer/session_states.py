"""The states of a writer's session, and the events that lead from one to another.

"All" means every segment of the stream. A connection that breaks changes no state: after the next `connected` the
segment is opened again, and gets again what it has not answered, operations first and then appends (E6 sessions). Where
the session has left it is not opened again: an abort that its leave overtook gets no answer then, and waits for none.

docs/protocol.md draws this table.
"""

from enum import StrEnum

from epochal.errors import WriterClosed
from epochal.protocol.transitions import Transitions


class WriterSessionState(StrEnum):
    """Where a session is."""

    OPENING = "opening"
    """`Open` is sent over each connection; some segment has not answered."""
    JOINING = "joining"
    """All have answered. Epochs that were given up are aborted, then what all can give is held at each (E5)."""
    OPEN = "open"
    """`SessionReady` was reported: the program may append and move."""
    LEAVING = "leaving"
    """`Leave` is sent, or waits until all appends before it are acknowledged (E1 barrier)."""
    WITHDRAWING = "withdrawing"
    """The open was given up, and it is not known yet whether an earlier session left something."""
    OVER = "over"
    """Nothing is sent or taken any more."""


class WriterSessionEvent(StrEnum):
    """What happens to a session that changes its state."""

    ANSWERED = "all have answered `Open`"
    ANSWERED_UNDER = "all have answered `Open`, and the capability is another writer's"
    JOINED = "all hold what all can give (E5)"
    LEFT = "`leave`, to close or finish: `Leave` follows once all appends are acknowledged (E1 barrier)"
    LEFT_BY_EXCEPTION = "`leave`, by an exception: `Leave` is sent at once (E4)"
    LEAVE_FAILED = "an append failed before `Leave` was sent, which is not sent then (E1 barrier)"
    CONFIRMED = "all have confirmed, and nothing waits"
    COMPLETED = "the stream is complete: this writer's finish and all others took effect (E7 finish)"
    WITHDRAWN = "`withdraw`: the caller has given the open up"
    NOTHING_LEFT = "no earlier session has left anything: `Leave` is sent wherever the session may be open"
    SOMETHING_LEFT = "an earlier session has left something, with which its next one goes on (E6 sessions)"
    FAILED = "an error that no new connection heals: `Leave` where it is open, if it was lost (E3 lost writers)"
    GIVEN_UP = "`give_up`: the shell cannot go on. `Leave` where it is open, unless a next session comes (E4)"


_S, _E = WriterSessionState, WriterSessionEvent
_ENDS = {_E.FAILED: _S.OVER, _E.GIVEN_UP: _S.OVER}
"""Wherever a session is, it can fail."""

WRITER_TRANSITIONS = Transitions(
    _S.OPENING,
    {
        _S.OPENING: {
            _E.ANSWERED: _S.JOINING,
            _E.ANSWERED_UNDER: _S.OPEN,
            _E.WITHDRAWN: _S.WITHDRAWING,
            **_ENDS,
        },
        _S.JOINING: {
            _E.JOINED: _S.OPEN,
            _E.WITHDRAWN: _S.WITHDRAWING,
            **_ENDS,
        },
        _S.OPEN: {
            _E.LEFT: _S.LEAVING,
            _E.LEFT_BY_EXCEPTION: _S.LEAVING,
            _E.WITHDRAWN: _S.WITHDRAWING,
            **_ENDS,
        },
        _S.LEAVING: {
            _E.LEFT_BY_EXCEPTION: _S.LEAVING,
            _E.LEAVE_FAILED: _S.OPEN,
            _E.CONFIRMED: _S.OVER,
            _E.COMPLETED: _S.OVER,
            **_ENDS,
        },
        _S.WITHDRAWING: {
            _E.NOTHING_LEFT: _S.LEAVING,
            _E.SOMETHING_LEFT: _S.OVER,
            **_ENDS,
        },
    },
)


class WriterSessionLife:
    """The state of one session of `writer`; every part of the session looks here whether it may go on."""

    __slots__ = ("_writer", "state")

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.state = WRITER_TRANSITIONS.start

    def enter(self, event: WriterSessionEvent) -> None:
        """Go to the state to which `event` leads; raises `LocalProtocolError` where the table has no such event."""
        self.state = WRITER_TRANSITIONS.after(self.state, event)

    @property
    def over(self) -> bool:
        """Whether the session has ended, in whatever way."""
        return self.state is WriterSessionState.OVER

    def check_open(self) -> None:
        """Raise `WriterClosed` unless the program may append and move."""
        if self.state is WriterSessionState.OPEN:
            return
        if self.state in (WriterSessionState.OPENING, WriterSessionState.JOINING):
            raise WriterClosed(f"writer {self._writer!r} is not open yet")
        raise WriterClosed(f"writer {self._writer!r} has left the stream; open a new one")
