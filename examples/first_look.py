"""`make try`: a catalog, publishers, a subscriber and a program on this machine, in some seconds and without Java.

    python examples/first_look.py

It needs what `pip install "epochal[local]"` installs. Everything is in a temporary directory, and at the end, or after
Ctrl-C, no process and no file is left. What the commands print is shown as it comes, after the name of the command.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path

import epochal
from epochal.cli.failures import ExitStatus, report
from epochal.errors import EpochalError, TimedOut
from epochal.local import LocalMode
from epochal.local.child import console_script

ROOT = Path(__file__).resolve().parents[1]
STREAM = "demo/delays"
BIN = Path(os.path.relpath(Path(sys.executable).parent))
"""Where the commands are."""
MANIFEST = "examples/delays.yaml"
PROGRAM = "examples/delays.py"
WAIT = 60.0
"""Seconds that each step may take; on an idle machine one takes a second at most."""
END_WAIT = 10.0
"""Seconds that a command may take to end once it was asked to; then it is killed."""
WIDTH = max(map(len, ("program", "apply", "sub", "writer")))

NEXT = f"""\
The services have ended, and their directory is gone. To go on by yourself:

  {{bin}}/epochal up    # in one terminal: the same services, until Ctrl-C
  {{bin}}/epochal apply -f {MANIFEST}    # in another one, and so on
  {{bin}}/epochal sub {STREAM} --epochs
  {{bin}}/python {PROGRAM}    # as often as you like
"""


class Command:
    """A running command whose lines are shown; made by `running`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.lines: list[str] = []
        self._name = name
        self._process = process
        self._more = asyncio.Event()
        self._output = asyncio.create_task(self._show(), name=f"output of {name}")

    async def printed(self, line: str) -> None:
        """Wait until it has printed a line that begins with `line`; raises `EpochalError` if it ends before."""
        while not any(shown.startswith(line) for shown in self.lines):
            if self._output.done():
                raise EpochalError(f"{self._name} ended without printing: {line}")
            self._more.clear()
            await self._more.wait()

    async def succeed(self) -> None:
        """Wait for its end; raises `EpochalError` if it fails."""
        await self._output
        if status := await self._process.wait():
            raise EpochalError(f"{self._name} failed with status {status}")

    async def stop(self) -> None:
        """Ask it to end, if it runs, and wait until it has ended."""
        try:
            if self._process.returncode is None:
                self._process.terminate()
                async with asyncio.timeout(END_WAIT):
                    await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            self._output.cancel()

    async def _show(self) -> None:
        assert self._process.stdout is not None
        try:
            while data := await self._process.stdout.readline():
                line = data.decode(errors="replace").rstrip()
                show(self._name, line)
                self.lines.append(line)
                self._more.set()
        finally:
            self._more.set()


@contextlib.asynccontextmanager
async def running(name: str, *command: str, environment: Mapping[str, str]) -> AsyncIterator[Command]:
    """Run a command for as long as the block lasts."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others in order
    )
    started = Command(name, process)
    try:
        yield started
    finally:
        await started.stop()


def step(text: str, command: str = "") -> None:
    """Say what comes next, and how one would type it."""
    print(f"\n{text}", flush=True)
    if command:
        print(f"  $ {command}", flush=True)


def show(name: str, line: str) -> None:
    """Show one line of a command."""
    print(f"  {name:{WIDTH}} | {line}", flush=True)


async def look() -> None:
    """Run all steps."""
    step("1. A catalog and publishers start on this machine.", "epochal up")
    began = time.monotonic()
    async with LocalMode() as local:
        show("up", f"ready at {local.url} after {time.monotonic() - began:.1f} s, with files in {local.data}")
        environment = {**os.environ, "EPOCHAL_CATALOG": local.url}
        epochal_command = console_script("epochal")

        step("2. A stream is declared: its times are integers, here hours.", f"epochal apply -f {MANIFEST}")
        await run("apply", epochal_command, "apply", "-f", MANIFEST, environment=environment)

        subscribe = ["sub", STREAM, "--epochs", "--since", "start"]
        step("3. A subscriber prints each hour as a whole, once it is complete.", f"epochal {' '.join(subscribe)}")
        async with running("sub", epochal_command, *subscribe, environment=environment) as sub:
            step("4. A program publishes three hours, and reads them: the one in the README.", f"python {PROGRAM}")
            await run("program", sys.executable, PROGRAM, environment=environment)
            await within(sub.printed("epoch 2 complete"))

            step("5. Another writer fails in the middle of hour 3. The subscriber prints nothing of it.")
            await fail_in_the_middle(local.url)

            step("6. The program again. Its times go on; hour 3 is aborted as a whole.", f"python {PROGRAM}")
            await run("program", sys.executable, PROGRAM, environment=environment)
            await within(sub.printed("epoch 5 complete"))

        step("7. Everything ends.")
    print(NEXT.format(bin=BIN), end="", flush=True)


async def run(name: str, *command: str, environment: Mapping[str, str]) -> None:
    """Run a command to its end; raises `EpochalError` if it fails, or takes too long."""
    async with running(name, *command, environment=environment) as started:
        await within(started.succeed())


async def within(waiting: Awaitable[None]) -> None:
    """Wait; raises `TimedOut` after `WAIT` seconds."""
    try:
        async with asyncio.timeout(WAIT):
            await waiting
    except TimeoutError:
        raise TimedOut(f"this step has not ended after {WAIT:g} s; is the machine very busy?") from None


async def fail_in_the_middle(url: str) -> None:
    """Append to the hour that is next, and leave the writer's block by an exception."""
    try:
        async with epochal.connect(url) as client, client.writer(STREAM, writer_id="w2") as writer:
            (hour,) = writer.held
            await writer.append(hour, [{"delay": 99}], key=b"JFK")
            show("writer", f'appended {{"delay": 99}} at {hour}')
            raise ValueError("a fault of this program")
    except ValueError as error:
        show("writer", f"ends by {error!r}")


async def interruptible() -> None:
    """Look until the end or until a signal; in both cases everything that was started has ended."""
    looking = asyncio.ensure_future(look())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, looking.cancel)
    try:
        await looking
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def main() -> int:
    """Entry point; returns the exit status."""
    try:
        asyncio.run(interruptible())
    except KeyboardInterrupt:
        print("\nstopped; no process and no file is left", flush=True)
        return ExitStatus.INTERRUPTED
    except Exception as error:  # any failure ends as one of the command line does
        return report(error)
    return ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main())
