"""How a writer leaves: a close goes on with the leave of a cancelled call, and an exception does not wait for that."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from epochal.client.writer.departure import Departure
from epochal.protocol.messages import Leaving


class Session:
    """Notes how it is asked to leave; its publishers answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Leaving] = []
        self.answers: list[asyncio.Future[None]] = []
        self.requested = asyncio.Event()
        self.answers_at_once = False
        self.unsent = None
        self.machine = SimpleNamespace(raise_failure=lambda: None, leave=self._leave)

    def _leave(self, how: Leaving, *, awaited: bool) -> int:
        assert awaited
        self.asked.append(how)
        return len(self.asked)

    async def usable(self) -> None:
        pass

    def request(self, ask: Callable[[], int]) -> "asyncio.Future[None]":
        ask()
        self.answers.append(asyncio.get_running_loop().create_future())
        if self.answers_at_once:
            self.answers[-1].set_result(None)
        self.requested.set()
        return self.answers[-1]

    async def outcome(self, answer: "asyncio.Future[None]", *, shared: bool) -> None:
        assert shared, "a caller that is cancelled must not end it for the next one"
        await asyncio.shield(answer)


async def cancelled_while_it_leaves(departure: Departure, session: Session, how: Leaving) -> None:
    leaving = asyncio.create_task(departure.leave(how))
    await session.requested.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving


@pytest.mark.rule("E7")
@pytest.mark.parametrize("first", [Leaving.CLOSE, Leaving.FINISH])
async def test_a_close_goes_on_with_the_leave_whose_caller_was_cancelled(first: Leaving) -> None:
    session: Any = Session()
    departure = Departure(session, 60.0)
    await cancelled_while_it_leaves(departure, session, first)
    session.answers_at_once = True
    asyncio.get_running_loop().call_soon(session.answers[0].set_result, None)
    await departure.leave(Leaving.CLOSE)
    assert session.asked == [first]
    assert (departure.left, departure.answered) == (True, True)


@pytest.mark.rule("E4")
async def test_an_exception_leaves_at_once_although_a_finish_is_under_way() -> None:
    session: Any = Session()
    departure = Departure(session, 60.0)
    await cancelled_while_it_leaves(departure, session, Leaving.FINISH)
    session.requested.clear()
    leaving = asyncio.create_task(departure.leave(Leaving.ABORT))
    await session.requested.wait()
    session.answers[-1].set_result(None)
    await leaving
    assert session.asked == [Leaving.FINISH, Leaving.ABORT]
    assert (departure.left, departure.answered) == (True, False)
    session.answers[0].cancel()
