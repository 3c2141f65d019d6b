"""Runs commands side by side, and says what each is doing while it does: what is made may take many minutes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.cluster.harness.places import ROOT

EVERY = 15.0
"""Seconds without a word from a command after which it is said what it is doing."""
_ENDS_WITHIN = 10.0


class CommandError(Exception):
    """A command has failed; the message says which. What it said has been printed."""


@dataclass(slots=True)
class _Task:
    process: subprocess.Popen[str]
    began: float
    said: str = "begun"
    spoke: float = field(default_factory=time.monotonic)

    def seconds(self) -> str:
        return f"{time.monotonic() - self.began:.0f} s"


def side_by_side(
    commands: Mapping[str, Sequence[str | Path]], say: Callable[[str], None], every: float = EVERY
) -> None:
    """Run commands at the same time and return when all have ended well.

    Args:
        commands: What each makes -> its command. They run at the root of the tree, in sessions of their own.
        say: Gets each line that a command says, after what it makes; every `every` seconds of silence its last line,
            and since when it has been at it; and when it is done.
        every: Seconds.

    Raises:
        CommandError: One has failed; the others have been ended.
    """
    lines: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
    tasks: dict[str, _Task] = {}
    try:
        for name, command in commands.items():
            tasks[name] = _Task(_started(command), time.monotonic())
            threading.Thread(target=_read, args=(name, tasks[name].process, lines), daemon=True).start()
        running = dict(tasks)
        while running:
            due = min(task.spoke + every for task in running.values())
            with suppress(Empty):
                name, line = lines.get(timeout=max(due - time.monotonic(), 0.01))
                task = running[name]
                if line is None:
                    del running[name]
                    if code := task.process.wait():
                        raise CommandError(f"{name}: failed after {task.seconds()} (exit status {code})")
                    say(f"{name}: done, {task.seconds()}")
                else:
                    task.said, task.spoke = line, time.monotonic()
                    say(f"{name}: {line}")
            for name, task in running.items():
                if time.monotonic() - task.spoke >= every:
                    task.spoke = time.monotonic()
                    say(f"{name}: under way for {task.seconds()}; last: {task.said}")
    finally:
        for task in tasks.values():
            _end(task.process)


def build(images: Sequence[str] | None, tier: str | None, say: Callable[[str], None]) -> None:
    """Build side by side what is not there yet: images, and the programs of a cluster.

    Args:
        images: Their names for tools/images; empty for the usual ones, None for none.
        tier: The programs of which tier (node or api), None for none.
        say: Gets what is said meanwhile, as in `side_by_side`.

    Raises:
        CommandError: Something could not be built.
    """
    commands: dict[str, Sequence[str | Path]] = {}
    if images is not None:
        commands["images"] = [ROOT / "tools" / "images", *images]
    if tier is not None:
        commands["programs"] = [sys.executable, "-m", "tests.cluster", "build", "--tier", tier]
    side_by_side(commands, say)


def _started(command: Sequence[str | Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def _read(name: str, process: subprocess.Popen[str], lines: SimpleQueue[tuple[str, str | None]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line.strip():
                lines.put((name, line.rstrip()))
    lines.put((name, None))


def _end(process: subprocess.Popen[str]) -> None:
    """End a command with all that it has started, if it still runs."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(_ENDS_WITHIN)
            return
