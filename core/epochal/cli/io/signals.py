"""Signals that would end the program at once, reported to it, so that it leaves in order.

Ctrl-C is none of them: that is asyncio's.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What a service manager sends, and a terminal that is closed."""


@contextlib.contextmanager
def reported_signals(
    report: Callable[[signal.Signals], None], numbers: Iterable[signal.Signals] = ENDING
) -> Iterator[None]:
    """Call `report` with each of these signals that comes; one that is ignored, as by nohup, stays ignored."""
    loop = asyncio.get_running_loop()
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, report, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def cancelled_by_signals() -> Iterator[list[signal.Signals]]:
    """Cancel the block once a signal comes that would end the program, as asyncio does at Ctrl-C.

    Gives a list that then holds the signal; the block ends without an exception.
    """
    task, came = asyncio.current_task(), list[signal.Signals]()
    assert task is not None

    def end(number: signal.Signals) -> None:
        if not came:  # a terminal that is closed may send it twice
            came.append(number)
            task.cancel()

    with reported_signals(end):
        try:
            yield came
        except asyncio.CancelledError:
            if not came:
                raise
            task.uncancel()
