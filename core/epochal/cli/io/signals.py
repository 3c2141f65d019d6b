"""Signals that end the program: the first ends what runs in order, whichever it is, and a second one at once.

One place for all commands. A command is cancelled, so what it holds is left as by any cancellation: writers close,
cursors are saved, services are stopped. How the command ends then is `main`'s.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.cli.io.terminal import note
from epochal.errors import TimedOut

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGINT from Ctrl-C; SIGTERM from `timeout`, service managers and Kubernetes; SIGHUP from a closed terminal."""

AGAIN = 0.5
"""Seconds after the first signal before a second one counts: `timeout` and closed terminals send theirs twice."""

LOOK = 0.2
"""Seconds between checks for a signal while a question waits for its answer."""

PATIENCE = 3.0
"""Seconds after which a program that is still ending says so."""


class EndedBySignal(BaseException):
    """A signal has ended the command. No subclass of `Exception`, like KeyboardInterrupt."""


class _Ending:
    """The signals that have come, and the task that they end."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.at = 0.0
        self.task: asyncio.Task[Any] | None = None
        self.asked = False
        """Whether the task must be cancelled and is not yet: the loop has not come to it, or the task had ended."""
        self.leaving = False


_ending = _Ending()


def came() -> signal.Signals | None:
    """The signal that came first since `ending` was entered."""
    return _ending.number


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Handle the signals that end a program.

    The first cancels what `run` runs, or raises `EndedBySignal` where nothing runs. A second one ends the process as if
    it were not handled. One that is ignored, as by nohup, stays ignored.
    """
    _ending.number, _ending.asked = None, False
    if threading.current_thread() is not threading.main_thread():  # only there may they be handled
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    handled = [number for number in ENDING if before[number] in (signal.SIG_DFL, signal.default_int_handler)]
    for number in handled:
        signal.signal(number, _handle)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _handle(number: int, _: FrameType | None) -> None:
    if _ending.number is not None:
        if time.monotonic() - _ending.at >= AGAIN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    _ending.number, _ending.at = signal.Signals(number), time.monotonic()
    if (task := _ending.task) is None or task.done():
        raise EndedBySignal
    _ending.asked = not _ending.leaving
    task.get_loop().call_soon_threadsafe(_cancel, task, _ending.number)  # it also wakes the loop


def _cancel(task: "asyncio.Task[Any]", number: signal.Signals) -> None:
    """Cancel in a turn of its own: inside a callback this would cancel a future that the callback is about to set."""
    _ending.asked = _ending.asked and not task.cancel()
    task.get_loop().call_later(
        PATIENCE, note, f"still ending in order after {number.name}; another one ends it at once"
    )


def run(command: Coroutine[None, None, T]) -> T:
    """Run a coroutine to its end in an event loop of its own.

    Raises `EndedBySignal` where a signal has cancelled it, unless it catches that and ends in another way; also where
    one came so late that there was nothing to cancel.
    """
    import asyncio  # here and below: `epochal --help` needs no event loop

    found = asyncio.run(_cancelled_by_signals(command))
    if _ending.asked:
        raise EndedBySignal
    return found


async def _cancelled_by_signals(command: Coroutine[None, None, T]) -> T:
    import asyncio

    try:
        _ending.task, _ending.leaving = asyncio.current_task(), False
        return await command
    except asyncio.CancelledError:
        if _ending.number is None:
            raise
        raise EndedBySignal from None
    finally:
        _ending.task = None
        command.close()


def leaving() -> None:
    """From here on the first signal cancels nothing: the command has only to leave, as the signal would ask."""
    _ending.leaving, _ending.asked = True, False


async def to_the_end(do: Callable[[], Coroutine[Any, Any, Any]], late: str, patience: float, *, came: bool) -> bool:
    """Run `do` to its end even if a signal comes meanwhile; returns whether one `came` by now.

    A writer that is left by a cancellation aborts what it has published, so acknowledgements are awaited all the same.
    After a signal `do` is called again, as it waits for something that goes on by itself, and for at most `patience`
    seconds; then raises `TimedOut` with the words `late`.
    """
    import asyncio

    if not came:
        try:
            await do()
            return False
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
    try:
        async with asyncio.timeout(patience):
            await do()
    except TimeoutError:
        raise TimedOut(late) from None
    return True


@contextlib.contextmanager
def raised_at_once() -> Iterator[None]:
    """Have a signal raise `EndedBySignal` in a block that keeps the event loop waiting: it asks on the terminal.

    One that comes just before the system call that waits is noted, and does not interrupt it: a timer does.
    """
    task, _ending.task = _ending.task, None
    try:
        with _interrupted():
            yield
    finally:
        _ending.task = task


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there is a signal handled
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def reported_signals(report: Callable[[signal.Signals], None], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Call `report` with each of these other signals that comes; one that is ignored stays ignored."""
    import asyncio

    loop = asyncio.get_running_loop()
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, report, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
