"""`sub --idle` under a virtual clock: from the last record, or from when the subscription was ready."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.virtual_time import run

from epochal.cli.commands.sub import _Choice, _until_idle
from epochal.client.catalog.relay_choice import Via
from epochal.errors import TimedOut

IDLE = 2.0
TIMEOUT = 30.0


class Printed:
    """Counts what is shown; none of it is printed."""

    def __init__(self, count: int | None) -> None:
        self.shown, self.counts, self.count = 0, count is not None, count or 0

    @property
    def left(self) -> int:
        return self.count - self.shown


class Subscription:
    """Ready after so many seconds, or never; then records come at these times."""

    def __init__(self, ready: float | None, *records: float) -> None:
        self.ready, self._after, self._records = asyncio.Event(), ready, records
        if ready is not None:
            asyncio.get_running_loop().call_later(ready, self.ready.set)

    async def events(self) -> AsyncIterator[str]:
        for at in self._records:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            yield "a record"
        await asyncio.Event().wait()


def followed(ready: float | None, *records: float, count: int | None = None) -> tuple[int, float]:
    """How many records were shown, and when it ended."""

    async def main() -> tuple[int, float]:
        choice = _Choice(None, None, [], False, IDLE, None, None, Via("direct"))
        printed = Printed(count)
        async for _ in _until_idle(Subscription(ready, *records), choice, printed, TIMEOUT):  # type: ignore[arg-type]  # as far as it is used
            printed.shown += 1
        return printed.shown, asyncio.get_running_loop().time()

    return run(main())


@pytest.mark.parametrize("ready", [0.0, 1.0, 29.0])
def test_it_counts_from_when_it_was_ready_and_then_from_the_last_record(ready: float) -> None:
    assert followed(ready) == (0, ready + IDLE)
    assert followed(ready, ready + 1.5, ready + 3.0) == (2, ready + 3.0 + IDLE)
    assert followed(ready, ready + 2.5) == (0, ready + IDLE)


def test_fewer_than_are_counted_is_an_error() -> None:
    with pytest.raises(TimedOut, match="1 of 3 records came, then none for 2 s"):
        followed(5.0, 6.0, count=3)


def test_a_subscription_that_is_never_ready_ends_and_says_so() -> None:
    with pytest.raises(TimedOut, match="not every segment could be joined within 30 s"):
        followed(None)
