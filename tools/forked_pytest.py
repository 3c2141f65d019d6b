"""Runs pytest many times, each time in a process forked from one that has loaded pytest and other packages already.

Used by tools/mutants.py: in such short runs most of the processor time goes into imports. The process that is forked
has loaded nothing of the tree that is tested, so that each run imports all of it, as it is there.

    with ForkServer() as server:
        code = server.run(tree, [tree / "core"], ["-x", "tests/test_one.py"], 60.0)
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PACKAGES = (
    "aiohttp.web", "alembic.command", "hypothesis.stateful", "msgpack", "opentelemetry.exporter.prometheus",
    "opentelemetry.sdk.metrics", "opentelemetry.sdk.trace", "pydantic_settings", "sortedcontainers",
    "sqlalchemy.dialects.sqlite", "typer", "yaml", "zmq.asyncio",
)  # fmt: skip
"""What most tests import. One that is missing here, or is not installed, costs time and nothing else."""

START_SECONDS = 300.0
"""For the process to fork from to have loaded its packages: a cold start on a busy machine takes many seconds."""

OPTIONS = ["-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio", "-p", "no:schemathesis"]


class ForkServer:
    """The process to fork from, with `packages` loaded, while entered. Several threads may call `run` at a time.

    All runs have the same seed of hashes, which no fork can change; PYTHONHASHSEED sets another one.
    """

    def __init__(self, packages: Sequence[str] = PACKAGES) -> None:
        self._packages = packages

    def __enter__(self) -> Self:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *self._packages]
            environment = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._requests.close()
        self._process.wait()

    def run(
        self,
        tree: Path,
        roots: Sequence[Path],
        arguments: Sequence[str],
        seconds: float,
        *,
        compile_files: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> int | None:
        """Run pytest in `tree`, against the packages in `roots`, which come before those that are installed.

        `environment` is added to the environment that the server was started with.

        Returns:
            its exit code; -1 when the process was killed, None when it ran longer than `seconds`. Nothing that it
            started is left in all cases.
        """
        ours, theirs = socket.socketpair()
        paths = {"tree": str(tree), "roots": list(map(str, roots))}
        given = {"arguments": list(arguments), "compile_files": compile_files, "environment": dict(environment or {})}
        with ours, ours.makefile() as answers:
            with theirs:
                socket.send_fds(self._requests, [json.dumps({**paths, **given}).encode()], [theirs.fileno()])
            ours.settimeout(START_SECONDS)
            session = int(answers.readline())
            try:
                ours.settimeout(seconds)
                return int(answers.readline() or -1)
            except TimeoutError:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(session, signal.SIGKILL)


def serve(requests: socket.socket, packages: Sequence[str]) -> None:
    """Load `packages`, then fork a process for each request, until the other end is closed."""
    import pytest

    # Once over nothing: pytest's plugins must be loaded by pytest itself, which compiles them in its own way.
    with tempfile.TemporaryDirectory() as empty:
        pytest.main([*OPTIONS, "-qq", "--rootdir", empty, "--noconftest", "-c", os.devnull, "--collect-only", empty])
    for package in packages:
        with suppress(ImportError):
            importlib.import_module(package)
    # What is loaded stays: no search for garbage in a fork looks at it, or copies its memory by that.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts the caller has each run end first
    running: set[int] = set()
    while True:
        request, received, _, _ = socket.recv_fds(requests, 1 << 20, 1)
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0] == pid}
        if not request:
            break
        pid = os.fork()
        if pid == 0:
            requests.close()
            with socket.socket(fileno=received[0]) as answer:
                _run(answer, **json.loads(request))
        running.add(pid)
        os.close(received[0])
    for pid in running:
        os.waitpid(pid, 0)


def _run(
    answer: socket.socket,
    tree: str,
    roots: list[str],
    arguments: list[str],
    compile_files: bool,
    environment: dict[str, str],
) -> None:
    """Become a session of its own, run pytest, and end."""
    import pytest

    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        answer.sendall(b"%d\n" % os.getpid())
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        os.chdir(tree)
        # The test and every process that it starts take the packages from here.
        path = [*roots, os.path.dirname(os.path.abspath(__file__))]
        sys.path[:0] = [tree, *path]
        own = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": os.path.join(tree, "tmp"), "EPOCHAL_MUTANT": "1"}
        os.environ |= environment | own
        os.makedirs(os.environ["TMPDIR"], exist_ok=True)
        tempfile.tempdir = None
        sys.dont_write_bytecode = not compile_files
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if not compile_files:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        code = int(pytest.main([*OPTIONS, *arguments]))
    finally:
        answer.sendall(b"%d\n" % code)
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
