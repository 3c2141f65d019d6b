"""How long `pub` and `bench` wait for publishers: until the last answer that they can have read is too long ago."""

import asyncio
from collections.abc import Callable

import pytest
from tests.virtual_time import VirtualLoop, run

from epochal.cli.waits import LOOK_EVERY, watched
from epochal.errors import EpochalError

PATIENT = 5.0
REASON = "segment 0: its log cannot be written"


class Waiting:
    """A writer with two answers outstanding; each catalog question gives `meanwhile` a chance."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.unanswered: tuple[int, ...] | None = (2,)
        self.error: EpochalError | None = None
        self.asked = 0
        self._meanwhile = meanwhile

    def fail(self, error: EpochalError) -> None:
        self.error = error

    async def because(self) -> str:
        self.asked += 1
        self._meanwhile()
        return REASON

    async def for_seconds(self, seconds: float) -> None:
        """Watch it that long, from a moment just before a look."""
        watching = asyncio.create_task(watched(self, "demo/x", self.because, PATIENT))
        await asyncio.sleep(seconds)
        watching.cancel()
        await asyncio.wait([watching])


def test_without_any_answer_it_fails_in_time_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = Waiting()
    run(waiting.for_seconds(PATIENT + 2 * LOOK_EVERY))
    assert str(waiting.error) == f"no publisher of demo/x has confirmed anything for 5 s: {REASON}"
    assert capsys.readouterr().err == f"waiting for the publishers of demo/x, at most 5 s: {REASON}\n"


@pytest.mark.parametrize("question", [1, 2], ids=["to say why", "to give up"])
@pytest.mark.parametrize("left", [(1,), None], ids=["one of two", "the last"])
def test_an_answer_that_comes_while_the_catalog_is_asked_counts(
    capsys: pytest.CaptureFixture[str], question: int, left: tuple[int, ...] | None
) -> None:
    def answered() -> None:
        if waiting.asked == question:
            waiting.unanswered = left

    waiting = Waiting(answered)
    run(waiting.for_seconds(PATIENT + 2 * LOOK_EVERY))
    assert waiting.error is None
    assert (capsys.readouterr().err == "") is (question == 1), "it does not say that it waits for what has come"


@pytest.mark.parametrize("still", [PATIENT, 1.5])
def test_time_in_which_the_process_stood_still_does_not_count(still: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        watching = asyncio.create_task(waiting.for_seconds(PATIENT + still + 0.5))
        await asyncio.sleep(1.0)
        loop._virtual.now += still
        await watching

    waiting = Waiting()
    run(main())
    assert waiting.error is None
    run(waiting.for_seconds(PATIENT + 2 * LOOK_EVERY))
    assert waiting.error is not None, "it fails where the process runs"
