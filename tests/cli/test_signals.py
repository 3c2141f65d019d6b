"""What a signal does to a command: the first ends it in order, whichever it is, and the next one at once."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from epochal.cli.io import signals
from epochal.local.child import console_script

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@contextlib.contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command with pipes; killed at the end, if it still runs."""
    with subprocess.Popen(
        [console_script("epochal"), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def published(run, stream: str) -> list[object]:
    """The records of all epochs of a stream that is then finished."""
    assert run("pub", stream, "--finish").status == 0
    shown = run("sub", stream, "--since", "start", "--epochs", "--json")
    lines = [json.loads(line) for line in shown.out.splitlines()]
    return [record for line in lines if line["kind"] == "epoch" for record in line["records"]]


def until_shown(stream: str, catalog: str, count: int) -> None:
    """Returns once a reader has got so many records of the stream."""
    follow = ["sub", stream, "--since", "start", "--count", str(count), "--catalog", catalog]
    subprocess.run([console_script("epochal"), *follow], capture_output=True, timeout=PATIENCE, check=True)


@pytest.mark.parametrize("number", ENDING)
def test_pub_keeps_what_was_read_and_says_how_much(declared, run, catalog: str, number: signal.Signals) -> None:
    stream = declared(segments=1)
    with command("pub", stream, "-t", "1", "--catalog", catalog) as pub:
        assert pub.stdin is not None
        pub.stdin.write(b"1\n2\n")
        pub.stdin.flush()
        until_shown(stream, catalog, 2)
        pub.send_signal(number)
        _, err = pub.communicate(timeout=PATIENCE)
    assert err == b"2 records are published (up to standard input:2); nothing was advanced or finished\n"
    assert pub.returncode == 128 + number
    assert published(run, stream) == [1, 2], "its epoch was not aborted"


def test_timeout_of_coreutils_ends_pub_in_order(declared, run, catalog: str) -> None:
    """It signals the program, and then the program's whole group: the same signal comes twice."""
    stream = declared(segments=1)
    arguments = ["timeout", "--verbose", "600", console_script("epochal"), "pub", stream, "-t", "1"]
    with subprocess.Popen([*arguments, "--catalog", catalog], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as limited:
        assert limited.stdin is not None
        assert limited.stderr is not None
        limited.stdin.write(b"1\n")
        limited.stdin.flush()
        until_shown(stream, catalog, 1)
        limited.send_signal(signal.SIGALRM)  # its time is over
        err = limited.stderr.read()
    assert b"1 record is published (up to standard input:1); nothing was advanced or finished\n" in err, (
        limited.returncode
    )
    assert limited.returncode == 124, err
    assert published(run, stream) == [1]


def words(err: bytes) -> list[bytes]:
    """What is said on standard error, but for how to end at once what takes long to end: on a busy machine all does."""
    return [line for line in err.splitlines() if not line.startswith(b"still ending in order")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_prints_what_was_measured(declared, run, catalog: str, number: signal.Signals) -> None:
    stream = declared("bytes", segments=1)
    with command(
        "bench", "pub", stream, "--seconds", "600", "--batch", "1", "-o", "json", "--catalog", catalog
    ) as bench:
        until_shown(stream, catalog, 1)
        bench.send_signal(number)
        out, _ = bench.communicate(timeout=PATIENCE)
    assert bench.returncode == 128 + number
    found = json.loads(out)
    assert found["interrupted"] is True
    assert len(published(run, stream)) == found["records"], "it has left in order"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_watch_ends_without_a_word(declared, catalog: str, number: signal.Signals) -> None:
    stream = declared(segments=1)
    with command("get", "stream", stream, "--watch", "-o", "json", "--catalog", catalog) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.send_signal(number)
        _, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, words(err)) == (128 + number, [])


@pytest.mark.parametrize("number", ENDING)
def test_a_report_that_is_ended_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        arguments = ("report", "-o", tmp_path / "r.tar.gz", "--catalog", url, "--timeout", "60")
        with command(*arguments) as report, mute.accept()[0]:  # it asks for what there is, and gets no answer
            report.send_signal(number)
            _, err = report.communicate(timeout=PATIENCE)
    assert (report.returncode, words(err)) == (128 + number, [])
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import asyncio, sys
from epochal.cli.io import signals

async def work():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        print("ending", flush=True)
        await asyncio.Event().wait()

with signals.ending():
    signals.run(work())
"""


@pytest.mark.parametrize("again", ENDING)
def test_the_second_signal_ends_it_at_once(again: signal.Signals) -> None:
    """Even when what it still has to do never ends, and the second signal is another one."""
    program = PROGRAM.replace("with signals", "signals.AGAIN = 0.0\nwith signals")  # the seconds between are nothing
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"ending\n"
        process.send_signal(again)
        assert process.wait(PATIENCE) == -again, "as that signal ends a program: 128 + its number, to a shell"


def test_a_signal_amid_a_callback_leaves_that_as_it_is() -> None:
    """A connection that is made just then would find that its future has been cancelled, and say so by a traceback."""
    program = """
import asyncio, os, signal, sys
from epochal.cli.io import signals

def connected(done):
    if not done.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)
        done.set_result(None)

async def work():
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(connected, done)
    await done
    await asyncio.Event().wait()

with signals.ending():
    try:
        signals.run(work())
    except signals.EndedBySignal:
        print("ended by", signals.came().name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, words(done.stderr)) == (0, b"ended by SIGTERM\n", [])


def test_a_signal_in_the_last_turn_of_a_command_is_not_lost() -> None:
    """What comes after it, such as another request, is not begun."""
    program = """
import os, signal
from epochal.cli.io import signals

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    return "found"

with signals.ending():
    try:
        print(signals.run(work()))
    except signals.EndedBySignal:
        print("ended by", signals.came().name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.stdout, words(done.stderr)) == (b"ended by SIGTERM\n", [])


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("raise", None),
        ("raise TimedOut('late')", 4),
        ("raise UsageError('wrong')", 2),
        ("return 1", 1),
        ("return 0", 0),
    ],
)
def test_a_command_that_fails_as_it_ends_in_order_says_so_by_its_status(
    ends: str, status: int | None, number: signal.Signals
) -> None:
    """Else who has stopped it takes it for one that did all that was under way."""
    program = f"""
import asyncio, importlib, os
from epochal.cli.io import signals
from epochal.errors import TimedOut, UsageError

async def work():
    try:
        os.kill(os.getpid(), {number:d})
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        {ends}

main = importlib.import_module("epochal.cli.main")
main.app = lambda **_: signals.run(work())
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == (128 + number if status is None else status), done.stderr


def test_a_command_that_is_leaving_is_not_cancelled() -> None:
    """All of its work is done, and that is what its status says."""
    program = """
import asyncio, sys
from epochal.cli.io import signals

async def work():
    signals.leaving()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", signals.came().name, flush=True)

with signals.ending():
    signals.run(work())
"""
    arguments = [sys.executable, "-c", program]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(b"\n", timeout=PATIENCE)
    assert (process.returncode, out) == (0, b"done SIGTERM\n")


@pytest.mark.clock
def test_what_takes_long_to_end_says_how_to_end_it_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline() == b"still ending in order after SIGTERM; another one ends it at once\n"
        process.kill()


def test_a_command_that_waits_outside_of_the_loop_ends_too(declared, catalog: str) -> None:
    """A question is asked on the terminal, and waits there."""
    stream = declared(segments=1)
    code = f"""
import sys
from epochal.cli import main
from epochal.cli.commands import release
release._what_happens = lambda *_: "asking"
sys.argv = ["epochal", "release", {stream!r}, "w1", "--catalog", {catalog!r}]
main()
"""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stderr=subprocess.PIPE) as asking:
            assert asking.stderr is not None
            said = b""
            while b"Release w1?" not in said:
                more = os.read(asking.stderr.fileno(), 4096)
                assert more, said
                said += more
            asking.send_signal(signal.SIGTERM)
            assert asking.wait(PATIENCE) == 143
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_signal_just_before_a_question_waits_for_its_answer_is_not_lost() -> None:
    """It was noted, and interrupts nothing: here because another thread is given it."""
    code = """
import os, signal, sys, threading
from epochal.cli.io import signals

def told():
    os.read(0, 1)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with signals.ending():
    try:
        with signals.raised_at_once():
            threading.Thread(target=told, daemon=True).start()
            asked, _ = os.pipe()
            print("asking", flush=True)
            os.read(asked, 1)
    except signals.EndedBySignal:
        print("ended", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == b"asking\n"
        out, _ = asking.communicate(b"\n", timeout=PATIENCE)
    assert out == b"ended\n"


def test_a_terminal_that_is_closed_ends_pub_in_order(declared, run, catalog: str) -> None:
    """Nobody reads what it says, which must not keep it from leaving."""
    stream = declared(segments=1)
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    arguments = ["setsid", "--ctty", console_script("epochal"), "pub", stream, "-t", "1", "--catalog", catalog]
    with subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs) as pub:
        os.close(theirs)
        os.write(ours, b"1\n")
        until_shown(stream, catalog, 1)
        os.close(ours)
        assert pub.wait(PATIENCE) == 129
    assert published(run, stream) == [1]


def test_a_signal_while_the_last_records_are_not_acknowledged_yet_aborts_nothing(
    declared, run, catalog: str, shared_processes: Callable[[], list[int]]
) -> None:
    stream = declared(segments=1)
    with command("pub", stream, "-t", "1", "--catalog", catalog, "--timeout", "600") as pub:
        assert pub.stdin is not None
        assert pub.stderr is not None
        pub.stdin.write(b"1\n")
        pub.stdin.flush()
        until_shown(stream, catalog, 1)
        for pid in shared_processes():
            os.kill(pid, signal.SIGSTOP)
        try:
            pub.stdin.write(b"2\n")
            pub.stdin.close()
            waits = pub.stderr.readline()
            pub.send_signal(signal.SIGTERM)
        finally:
            for pid in shared_processes():
                os.kill(pid, signal.SIGCONT)
        rest = pub.stderr.read()
        pub.wait(timeout=PATIENCE)
    assert b"2 records are published (up to standard input:2)" in rest, waits
    assert pub.returncode == 128 + signal.SIGTERM
    assert published(run, stream) == [1, 2], "its epoch was not aborted"


async def test_what_may_not_be_left_half_way_goes_on_after_a_signal() -> None:
    """Leaving a writer by the cancellation would abort what is published, and lose what was measured."""
    asked, answered = asyncio.Semaphore(0), asyncio.Event()

    async def flush() -> None:
        asked.release()
        await answered.wait()

    ending = asyncio.create_task(signals.to_the_end(flush, "late", PATIENCE, came=False))
    await asked.acquire()
    ending.cancel()
    await asked.acquire()
    answered.set()
    assert await ending is True
    assert await signals.to_the_end(flush, "late", PATIENCE, came=False) is False
