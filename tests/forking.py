"""Starts this project's programs as forks of a process that has imported them, so that a test pays for imports once.

Most of what a program takes to start goes into the interpreter and its imports: 0.5 seconds of a processor in a
publisher that serves, and next to nothing in a fork. While `forked_programs` is entered, this process has them forked
instead. A fork has what a program has that is started by `exec`: a process id, this process as its parent, its
arguments, environment, directory, session, standard streams and other files, and the interpreter's own end. From `main`
on, all code is the same.

What is not this project's program is started as ever, and so is what depends on how the interpreter or a library came
up (`_may_fork`), and what other programs start: shells, Spark, the demo, and all that runs in pods.

Linux only: a fork becomes a child of the parent of the process that forks (CLONE_PARENT). Elsewhere nothing is forked.
"""

import ctypes
import fcntl
import importlib
import itertools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

PROGRAMS = {
    "epochal": "epochal.cli.main",
    "epochal-catalog": "epochal_catalog.__main__",
    "epochal-operator": "epochal_operator.__main__",
    "epochal-publisher": "epochal_publisher.__main__",
}
"""Console scripts, and the modules whose `main` they call."""

IMPORTED_LATER = {
    "epochal-catalog": ("epochal_catalog.server",),
    "epochal-publisher": (
        "epochal_publisher.serving", "epochal_publisher.relay.server", "epochal_publisher.shared.process",
        "epochal_publisher.sidecar.server",
    ),
}  # fmt: skip
"""What their commands import once they are called: no fork is to pay for that either."""

STARTS_OTHERS = {("epochal", "up")}
"""Programs, with their first argument, that start others of this project: they fork these."""

NAME = "epochal forks"
"""What the system calls the process that is forked, and nothing else (`/proc/PID/comm`)."""

CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
"""The number of the system call; None where nothing is forked. `clone3` has one number, and containers forbid it."""

FAILED = -1
"""In the place of a process id: this program cannot be forked here."""

MOST_BYTES = 100_000
"""Of a request, well below what a message on a socket may have. Who is given more arguments is not forked."""

OWN_FILES = 700
"""From here on, numbers of files are those of the processes that fork. A program that is given one is not forked."""

_FREE = ("EPOCHAL_", "PYSPARK_", "PYTEST_", "SPARK_", "XDG_")
_FREE_NAMES = {"HOME", "KUBECONFIG", "PATH", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "_"}
"""What the environment of a fork may differ in: nothing of this is read before `main`."""


def _answer_seconds() -> float:
    """For a program to be imported, the first time, and forked; from where tests/patience.py may not be found."""
    return 120.0 * float(os.environ.get("EPOCHAL_TEST_PATIENCE", "1"))


class Forks:
    """A process to fork from, begun when it is first needed. Several threads may call `start` at a time."""

    def __init__(self, environment: Mapping[str, str], requests: socket.socket | None = None) -> None:
        self._environment = dict(environment)
        self._requests = requests
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def close(self) -> None:
        """End the process; what it has forked goes on."""
        if self._requests is not None:
            with suppress(OSError):  # it has ended already
                self._requests.shutdown(socket.SHUT_RDWR)  # also where a child of this process has a copy
            self._requests.close()
        if self._process is not None:
            self._process.wait(_answer_seconds())

    def start(
        self, arguments: Sequence[str], cwd: str | None, environment: Mapping[str, str], files: Mapping[int, int],
        session: bool,
    ) -> int | None:  # fmt: skip
        """Fork, and run a program there.

        Args:
            arguments: path of the program and its arguments, possibly with `env` and variables before them.
            cwd: its directory, that of this process if None.
            environment: all of its variables.
            files: for each file that it has, by number, the file of this process.
            session: whether it begins a session of its own.

        Returns:
            its process id; None where it must be started by `exec`.

        Raises:
            RuntimeError: the process to fork from has ended, or does not answer for long.
        """
        arguments, environment = _called(arguments, environment)
        program = _program(arguments)
        where = os.path.abspath(cwd or os.getcwd())
        if program is None or max(files) >= OWN_FILES or not os.path.isdir(where) or not self._may_fork(environment):
            return None
        request = {
            "program": program, "arguments": list(arguments), "cwd": where, "session": session,
            "environment": dict(environment), "files": list(files),
        }  # fmt: skip
        message = json.dumps(request).encode()
        if len(message) > MOST_BYTES:
            return None
        with self._turn:
            requests = self._requests = self._requests or self._begin()
            requests.settimeout(_answer_seconds())
            try:
                socket.send_fds(requests, [message], [*files.values()])
                pid = int(requests.recv(64) or b"ended")
            except (OSError, ValueError) as error:
                raise RuntimeError(f"{program} was not forked; what {__file__} prints says why: {error!r}") from None
        return None if pid == FAILED else pid

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: the folder of this file has one named `operator`, as the standard library has.
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            files = [theirs.fileno()]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files, env=self._environment)
        return ours

    def _may_fork(self, environment: Mapping[str, str]) -> bool:
        both = self._environment.items() ^ environment.items()
        return all(name.startswith(_FREE) or name in _FREE_NAMES for name, _ in both)


def _called(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Sequence[str], Mapping[str, str]]:
    """What is called, and its environment: of `env NAME=VALUE... PROGRAM` the program, which has these variables."""
    if os.path.basename(arguments[0]) != "env":
        return arguments, environment
    given = list(itertools.takewhile(lambda each: "=" in each, arguments[1:]))
    return arguments[1 + len(given) :], {**environment, **dict(each.split("=", 1) for each in given)}


def _program(arguments: Sequence[str]) -> str | None:
    """The console script of this environment that is called."""
    if not arguments:
        return None
    folder, name = os.path.split(arguments[0])
    return name if name in PROGRAMS and folder == os.path.dirname(sys.executable) else None


@contextmanager
def forked_programs(forks: Forks | None = None) -> Iterator[None]:
    """While entered, this process has the programs of this project forked."""
    if CLONE is None:
        yield
        return
    forks = forks or Forks(os.environ)
    execute = subprocess._fork_exec  # type: ignore[attr-defined]

    # The one place through which all of the standard library starts programs.
    def start(
        arguments: Sequence[Any], executables: Sequence[bytes], close_fds: bool, keep: Sequence[int], cwd: Any,
        environment: Sequence[bytes] | None, stdin: int, _1: int, _2: int, stdout: int, _3: int, stderr: int,
        reports: int, fails: int, signals: bool, session: bool, group: int, gid: Any, gids: Any, uid: Any, umask: int,
        before: Any, *more: Any,
    ) -> int:  # fmt: skip
        plain = close_fds and group == -1 and gid is None and gids is None and uid is None and umask == -1
        if plain and before is None and os.fsencode(arguments[0]) == executables[0]:
            given = os.environ if environment is None else dict(map(_variable, environment))
            files = {0: stdin, 1: stdout, 2: stderr} | {file: file for file in keep if file != fails}
            files = {number: number if file == -1 else file for number, file in files.items()}
            where = None if cwd is None else os.fsdecode(cwd)
            pid = forks.start([*map(os.fsdecode, arguments)], where, given, files, session)
            if pid is not None:
                return pid
        return execute(
            arguments, executables, close_fds, keep, cwd, environment, stdin, _1, _2, stdout, _3, stderr, reports,
            fails, signals, session, group, gid, gids, uid, umask, before, *more,
        )  # fmt: skip

    with patch.object(subprocess, "_fork_exec", start):
        try:
            yield
        finally:
            forks.close()


def _variable(assigned: bytes) -> tuple[str, str]:
    name, _, value = os.fsdecode(assigned).partition("=")
    return name, value


def serve(requests: socket.socket) -> tuple[dict[str, Any], Forks | None]:
    """Fork for each request, until the other end is closed.

    Returns, in a fork, what it is to run, and what it forks others from if it does.
    """
    requests = _out_of_the_way(requests)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the programs, and this process ends with its parent
    _call_oneself(NAME)
    while True:
        asked, received, _, _ = socket.recv_fds(requests, 1 << 20, 64)
        if not asked:
            os._exit(0)
        request = json.loads(asked)
        modules = (PROGRAMS[request["program"]], *IMPORTED_LATER.get(request["program"], ()))
        pid = _fork_for_parent() if all(map(_imported, modules)) else FAILED
        if pid != 0:
            if pid == FAILED:
                requests.send(b"%d" % FAILED)
            _close(received)
            continue
        forks = None
        if (request["program"], *request["arguments"][1:2]) in STARTS_OTHERS:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:  # from here that program forks
                requests.close()
                _close([ours.detach(), *received])
                requests = _out_of_the_way(theirs)
                continue
            theirs.close()
            forks = Forks(request["environment"], _out_of_the_way(ours))
        _become(request, received)
        with requests:
            requests.send(b"%d" % os.getpid())  # as after an `exec`: it is there, in its session and directory
        return request, forks


def _out_of_the_way(own: socket.socket) -> socket.socket:
    """The same socket under a number that no program is given a file for."""
    with own:
        return socket.socket(fileno=fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, OWN_FILES))


def _imported(module: str) -> bool:
    """Import what a program is; false where a fork would not be the same."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    # A fork has the thread that forks and no other: what another one does, or holds, would be lost.
    return len(os.listdir("/proc/self/task")) == 1


def _fork_for_parent() -> int:
    """As `os.fork`, for the parent of this process: the fork becomes its child. `FAILED` where that is forbidden."""
    clone_parent, unused = 0x8000, ctypes.c_long(0)
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    flags = ctypes.c_long(clone_parent | signal.SIGCHLD)
    pid: int = ctypes.CDLL(None).syscall(ctypes.c_long(CLONE or FAILED), flags, unused, unused, unused, unused)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _become(request: dict[str, Any], received: list[int]) -> None:
    """Take on what `request` says of session, directory, environment, files and arguments."""
    _call_oneself(request["program"])
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    # A file may have come under a number that another is to have.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, OWN_FILES) for file in received]
    _close(received)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
    _close(moved)
    for file, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        old = getattr(sys, name)
        # As the interpreter opens them at its start: what is an error is seen line by line.
        lines = 1 if file == 2 else -1
        stream = open(file, mode, lines, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _call_oneself(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def main() -> None:
    """Serve; in a fork, run the program as its console script does."""
    request, forks = serve(socket.socket(fileno=int(sys.argv[1])))
    with forked_programs(forks) if forks else nullcontext():
        sys.exit(importlib.import_module(PROGRAMS[request["program"]]).main())


if __name__ == "__main__":
    main()
