"""What a busy machine could make red is found in tests, and nothing else; `make lint` reads those of this project."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from tests.patience import BASE, MOST

import load_proof

ROOT = Path(__file__).parents[2]


def problems(text: str, **others: str) -> list[str]:
    """What is found in a file of tests with this text, beside others; without the advice."""
    sources = {"tests/test_x.py": text, **{f"tests/{name}.py": other for name, other in others.items()}}
    found = load_proof.check({path: textwrap.dedent(source) for path, source in sources.items()})
    return [f"{finding.path}:{finding.line} {re.split('[:,]', finding.problem)[0]}" for finding in found]


@pytest.mark.parametrize(
    "wait",
    [
        "async with asyncio.timeout(30): pass",
        "await asyncio.wait_for(something, 5)",
        "await asyncio.wait([task], timeout=20)",
        "await asyncio.wait_for(something, timeout=2 * 30)",
        "subprocess.run(command, timeout=60)",
        "thread.join(5)",
        "queue.get(timeout=1.5)",
        "future.result(20)",
        "assert event.wait(30)",
        "connection.settimeout(20)",
        "assert socket.poll(10_000)",
        "deadline = time.monotonic() + 60",
        "deadline = asyncio.get_running_loop().time() + 60",
        "client.writer(stream, wait=30)",
    ],
)
def test_a_wait_with_a_bound_of_its_own_is_found(wait: str):
    assert problems(f"async def test_it():\n    {wait}\n") == [
        f"tests/test_x.py:2 {re.search(r'[0-9][0-9_.]*( [*] [0-9]+)?', wait)[0].replace('_', '')} bounds a wait"  # type: ignore[index]
    ]
    assert problems(f"@pytest.mark.clock\nasync def test_it():\n    {wait}\n") == []
    assert problems(f"async def test_it():\n    {wait}  # load: it is to end\n") == []
    assert problems(f"async def test_it():\n    # load: it is to end\n    {wait}\n") == []


@pytest.mark.parametrize(
    "wait",
    [
        "async with asyncio.timeout(PATIENCE): pass",
        "await asyncio.wait([task], timeout=0.05)",
        "socket.settimeout(0)",
        "', '.join(words)",
        "with pytest.raises(TimeoutError): queue.get(timeout=0.1)",
        "with suppress(TimeoutExpired): program.wait(0.1)",
        "assert not socket.poll(0.3)",
        "while not over.wait(0.05): work()",
        "machine = Writer(writer_timeout=2.0)",
        "machine.tick(now + 5)",
    ],
)
def test_what_load_cannot_make_red_is_let_through(wait: str):
    assert problems(f"async def test_it():\n    {wait}\n") == []


def test_a_constant_and_what_a_helper_hands_on_to_a_wait_are_found():
    helper = """
        LONG = 30.0
        def eventually(look, limit=20):
            deadline = time.monotonic() + limit
        class Wires:
            def soon(self, what, within=LONG):
                eventually(what, within)
    """
    test = """
        from tests.helper import eventually
        SOON = 5.0
        def test_it(wires):
            eventually(look, 7)
            eventually(look, limit=PATIENCE)
            wires.soon(what, 8)
            queue.get(timeout=SOON)
    """
    assert problems(test, helper=helper) == [
        "tests/helper.py:3 20 bounds a wait",
        "tests/test_x.py:3 5.0 bounds a wait",
        "tests/test_x.py:5 7 bounds a wait",
        "tests/test_x.py:7 8 bounds a wait",
    ]


def test_patience_is_one_and_ends_before_faulthandler_ends_the_run():
    assert problems("PATIENCE = 30.0\n") == ["tests/test_x.py:1 30.0 bounds a wait"]
    assert problems("def test_it():\n    thread.join(PATIENCE * 3)\n    socket.poll(PATIENCE * 1000)\n") == []
    assert problems("def test_it():\n    thread.join(PATIENCE * 4)\n") == ["tests/test_x.py:2 PATIENCE * 4"]
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["faulthandler_timeout"] >= BASE * MOST * load_proof.MOST_TIMES


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["began = time.monotonic()", "assert time.monotonic() - began < 5"], "elapsed time"),
        (["began = time.monotonic()", "took = time.monotonic() - began", "assert 1 < took < 5"], "elapsed time"),
        (["began = clock()", "assert 5 > time.perf_counter() - began"], "elapsed time"),
        (["assert found['p50_seconds'] < 5"], "elapsed time"),
        (["assert asking.slowest < 0.5"], "elapsed time"),
        (["began = perf_counter()", "assert 100 / (perf_counter() - began) > 20"], "a rate"),
        (["assert publisher.rss() < 2**20"], "memory"),
        (["before = publisher.fds()", "assert publisher.fds() == before"], "memory"),
        (["assert len(os.listdir('/proc/self/fd')) < 9"], "memory"),
        (["grown = []", "grown.append(publisher.rss())", "assert grown[0] < 5"], "memory"),
        (["def took(): return time.monotonic() - began", "assert took() < 5"], "elapsed time"),
    ],
)
def test_an_assert_on_seconds_or_memory_is_found(lines: list[str], what: str):
    body = "".join(f"    {line}\n" for line in lines)
    assert problems(f"def test_it():\n{body}") == [f"tests/test_x.py:{len(lines) + 1} asserts on {what}"]
    assert problems(f"pytestmark = [pytest.mark.clock]\ndef test_it():\n{body}") == []


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - began > 0.5",
        "assert time.monotonic() < deadline",
        "wait_until(lambda: publisher.fds() <= before)",
        "assert found['seconds'] > 0",
        "assert found['seconds'] <= found['max_seconds']",
    ],
)
def test_an_assert_that_holds_on_a_slow_machine_too_is_let_through(line: str):
    assert problems(f"def test_it():\n    began = time.monotonic()\n    before = publisher.fds()\n    {line}\n") == []
