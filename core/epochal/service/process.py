"""The life of a service process: options, log, signals, standard input, exit code.

All services stop and fail in the same way, and name the trace that a line of the log belongs to.

Exit codes: 0 stopped on request; 1 cannot run, with the reason in one line on standard error; 2 wrong usage. A service
may have others of its own.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NoReturn

import typer

from epochal.errors import EpochalError
from epochal.otel import sdk

Main = Callable[[asyncio.Event], Coroutine[Any, Any, int]]
"""A service, from start to stop: runs until the event is set or it ends by itself; returns its exit code."""


_LAST_MOMENT = 1.0
"""Seconds that threads get to end by themselves after the service has ended."""


def command_line(about: str) -> typer.Typer:
    """The command line of a service, to which the service adds its commands."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help=about)(lambda: None)
    return app


def run(program: str, main: Main, *, exit_with_stdin: bool = False) -> NoReturn:
    """Run a service in this process until SIGTERM, Ctrl-C or, with `exit_with_stdin`, the end of standard input."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Traced("%(asctime)s %(levelname)s %(name)s %(message)s"))
    _raise_file_limit()
    try:
        sdk.start(program, metrics=False)  # metrics are not sent: they are read at /metrics
        code = asyncio.run(_until_stopped(main, exit_with_stdin))
    except EpochalError as error:
        typer.echo(f"{program}: {error}", err=True)
        code = 1
    tracing = sdk.current()
    if tracing is not None:
        tracing.close()
    _leave_stuck_threads(code)
    raise typer.Exit(code)


def _leave_stuck_threads(code: int) -> None:
    """End the process at once if a thread hangs: the interpreter would wait for it, and a disk may never answer.

    This is safe because the service has ended: all that had to be done in order was done, or given up.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    deadline = time.monotonic() + _LAST_MOMENT
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0.0))
    stuck = [thread.name for thread in others if thread.is_alive()]
    if stuck:
        logging.getLogger("epochal").error("ending without waiting for what hangs: %s", ", ".join(stuck))
        logging.shutdown()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code or 1)


async def any_set(*events: asyncio.Event) -> None:
    """Return as soon as one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def file_limit() -> int:
    """How many files and sockets this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def _until_stopped(main: Main, exit_with_stdin: bool) -> int:
    stop = asyncio.Event()
    stop_on_signals(stop)
    if exit_with_stdin:
        _watch_stdin(asyncio.get_running_loop(), stop)
    return await main(stop)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and Ctrl-C set `stop`; this replaces their earlier handlers."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop at the end of standard input. It needs a thread, because a file or /dev/null cannot be polled."""

    def read() -> None:
        with suppress(OSError):  # standard input is closed: that is an end too
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop has ended for another reason
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def _raise_file_limit() -> None:
    """Raise the soft limit to the hard one; the soft limit, often 1,024, is meant for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ids() -> tuple[str, str] | None:
    """Trace id and span id of the current span, as text; None outside of any span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


ABOUT: ContextVar[str] = ContextVar("about", default="")
"""What the running task is for, where a process does one thing for many: each line of its log begins with it."""


class Traced(logging.Formatter):
    """A formatter that adds ` trace_id=... span_id=...` to a line that was written within a span, and `ABOUT`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; a stack trace, if there is one, comes after the ids."""
        found, about = ids(), ABOUT.get()
        if found is not None or about:
            record = logging.makeLogRecord(vars(record))
            traced = "" if found is None else f" trace_id={found[0]} span_id={found[1]}"
            record.msg, record.args = f"{about}{': ' * bool(about)}{record.getMessage()}{traced}", ()
        return super().format(record)
