"""How a writer leaves its stream: the one leave that is under way, and how long its caller waits for the publishers."""

import asyncio

from epochal.client.writer.session import Session
from epochal.errors import TimedOut, WriterClosed
from epochal.protocol import messages as m

ABORT_TIMEOUT = 3.0
"""Seconds that a writer which is left by an exception waits for the publishers' answers.

Without them, the publishers' time-out aborts the same epochs.
"""


class Departure:
    """Whether one writer has left, and how; `timeout` is in seconds."""

    def __init__(self, session: Session, timeout: float) -> None:
        self._session = session
        self._timeout = timeout
        self._under_way: tuple[m.Leaving, asyncio.Future[None]] | None = None
        self.left = False
        """Whether the program can no longer use the writer."""
        self.answered = False
        """Whether the writer has left, and no publisher owes it an answer."""

    async def leave(self, how: m.Leaving) -> None:
        """Leave every segment, if the writer has not left; returns once all publishers have answered.

        Raises `TimedOut` when one does not. For a close or finish, raises the first failure that no one awaited, and
        then has not left (E1 barrier).
        """
        if self.left:
            return
        patience = self._timeout
        if how is m.Leaving.ABORT:
            patience = min(patience, ABORT_TIMEOUT)
        try:
            async with asyncio.timeout(patience):
                await self._session.usable()
                await self._session.outcome(self._begin(how), shared=True)
        except TimeoutError:
            raise TimedOut(f"not every publisher answered within {patience:g} s that the writer left") from None
        self.left = True
        self.answered = how is not m.Leaving.ABORT

    def _begin(self, how: m.Leaving) -> asyncio.Future[None]:
        """Ask to leave; closing after a close or finish whose caller was cancelled goes on with that one."""
        session = self._session
        if how is m.Leaving.ABORT:
            if session.unsent is not None:
                session.unsent.drop(WriterClosed("the writer was left by an exception"))
        else:
            if session.unsent is not None:
                session.unsent.send_all()
            session.machine.raise_failure()
        before = self._under_way
        if before is not None and how in (m.Leaving.CLOSE, before[0]) and not _has_failed(before[1]):
            return before[1]
        future = session.request(lambda: session.machine.leave(how, awaited=True))
        self._under_way = (how, future)
        return future


def _has_failed(future: asyncio.Future[None]) -> bool:
    return future.done() and future.exception() is not None
