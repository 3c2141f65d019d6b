"""`top`: what it decides, each part by itself; the screen on a real pseudo-terminal; snapshots of real services."""

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len
from tests.patience import PATIENCE

import epochal as library
from epochal.catalog_api.answers import StreamInfo, SubscriptionInfo
from epochal.cli.io.keys import Key, KeyDecoder, single_keys
from epochal.cli.io.metrics import segment_samples
from epochal.cli.top.drawing import Status, draw, last_scroll, show_lag, style_of
from epochal.cli.top.rates import Rate, Reading, rates, readings, total
from epochal.cli.top.rows import Order, Reader, Snapshot, is_behind, rows, slowest_reader
from epochal.cli.top.screen import Mode, Screen
from epochal.local.child import console_script
from epochal.verdicts import Trouble

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OWNER = {"id": "p", "token": 1, "verified": True, "addresses": {}, "since": AT.isoformat()}
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def held(kind: str = "writer", seconds: float = 1.0, silent: float | None = 0.1, writer: str | None = "w1") -> Any:
    return {"segment": "0", "time": 4, "kind": kind, "writer": writer, "seconds": seconds, "silent": silent}


def stream(name: str, *holders: Any, phase: str = "Ready", **segment: Any) -> StreamInfo:
    found = {"id": "0", "lo": "0", "hi": str(2**64), "state": "open", "incarnation": 1, "lower": [4],
             "publisher": OWNER, "reported": 0.5, "counters": {}, "holders": [], **segment}  # fmt: skip
    return StreamInfo.from_json({
        "namespace": "demo", "name": name, "uid": f"uid-{name}", "generation": 1, "phase": phase,
        "manifest": {"spec": {}}, "writers": ["w1"], "created": AT.isoformat(), "held_back": holders,
        "subscriptions": 0, "segments": [found],
    })  # fmt: skip


def subscription(name: str, lower: list[Any] | None, waiting: int = 0, of: str = "a") -> SubscriptionInfo:
    return SubscriptionInfo.from_json({
        "id": name, "stream": f"demo/{of}", "uid": f"uid-{of}", "subscriber": name, "since": AT.isoformat(),
        "verified": True, "lower": lower, "counters": {"epochs": 3, "waiting_bytes": waiting},
    })  # fmt: skip


def snapshot(*streams: StreamInfo, readers: tuple[SubscriptionInfo, ...] = (), **known: Rate) -> Snapshot:
    return Snapshot(AT, streams, readers, {(f"demo/{name}", "0"): rate for name, rate in known.items()})


# ---- trouble, lag and order ----


@pytest.mark.parametrize(
    ("item", "trouble"),
    [
        (stream("a", held()), Trouble.NONE),
        (stream("a", held(seconds=100.0)), Trouble.HELD),
        (stream("a", held(), held(seconds=20.0, silent=15.0)), Trouble.HELD),
        (stream("a", held("lost", 1.0)), Trouble.LOST),
        (stream("a", held("parked", 9000.0, None, None)), Trouble.NONE),
        (stream("a", held("parked", 9000.0, None, None), counters={"open_epochs": 2}), Trouble.HELD),
        (stream("a", held("parked", 9.0, None, None), counters={"open_epochs": 2}), Trouble.NONE),
        (stream("a", held("no_publisher", 1.0, None, None), publisher=None), Trouble.DOWN),
        (stream("a", counters={"waiting_bytes": 9, "waiting_seconds": 7.0}), Trouble.WAITING),
        (stream("a", counters={"disk_full": 28, "disk_full_seconds": 0.1}), Trouble.FULL),
        (stream("a", counters={"disk_full": 0, "disk_full_seconds": 0.0}), Trouble.NONE),
        (stream("a", held(seconds=100.0), publisher=None, phase="Complete"), Trouble.NONE),
    ],
)
def test_trouble(item: StreamInfo, trouble: Trouble) -> None:
    (row,) = rows(snapshot(item))
    assert row.trouble is trouble
    for screen in (Screen(), Screen(mode=Mode.STREAM, selected="demo/a")):
        drawn = draw(screen, snapshot(item), Status("http://x"), 160, 24)
        assert any("demo/a" in line.plain for line in drawn)


@pytest.mark.parametrize("trouble", [trouble for trouble in Trouble if trouble is not Trouble.NONE])
def test_each_trouble_is_drawn_in_a_style_of_its_own(trouble: Trouble) -> None:
    assert style_of(trouble) != style_of(Trouble.NONE)


def test_a_reader_whose_program_takes_nothing_is_trouble() -> None:
    reader = subscription("r", [4], 40 * 2**20)
    (row,) = rows(snapshot(stream("a"), readers=(reader,)))
    assert (row.trouble, show_lag(row.slowest)) == (Trouble.SLOW, "40.0 MiB")
    (row,) = rows(snapshot(stream("a"), readers=(subscription("r", [4], 1, of="b"),)))
    assert row.slowest is None, "a reader of another stream"


def test_the_slowest_reader_is_the_one_at_the_least_time() -> None:
    readers = (subscription("x", [4]), subscription("y", [2]), subscription("z", [3], 99), subscription("w", [2], 5))
    (row,) = rows(snapshot(stream("a"), readers=readers))
    assert row.slowest == Reader("w", (2,), True, 5)
    assert show_lag(row.slowest) == "at 2, 5 B"
    (row,) = rows(snapshot(stream("a"), readers=(*readers, subscription("new", None))))
    assert show_lag(row.slowest) == "?"
    (row,) = rows(snapshot(stream("a"), readers=readers[:1]))
    assert show_lag(row.slowest) == "0"
    assert slowest_reader([Reader("end", (), False, 0), Reader("r", (7,), False, 0)]) == Reader("r", (7,), False, 0)


def test_frontiers_of_several_times_compare_by_the_product_order() -> None:
    assert is_behind([(0, 5)], [(0, 6), (2, 0)])
    assert not is_behind([(0, 7), (2, 1)], [(0, 6), (2, 0)])
    assert not is_behind([], [(0, 0)]), "it has received all"
    assert is_behind([(9, 9)], []), "the stream is complete"


def test_each_order() -> None:
    look = snapshot(
        stream("a", held(seconds=70.0)), stream("b", held(seconds=80.0)), stream("c"), stream("d", phase="Complete"),
        readers=(subscription("r", [2], of="c"), subscription("s", [4], 7, of="d")),
        a=Rate(1.0, 5.0), c=Rate(1.0, 50.0),
    )  # fmt: skip

    def names(order: Order) -> str:
        return "".join(row.stream.name for row in rows(look, order))

    assert [names(order) for order in Order] == ["bacd", "abcd", "cabd", "cdab"]
    assert [row.name for row in rows(look, text="W1")] == ["demo/b", "demo/a"], "who holds it back counts too"


# ---- rates ----


def test_rates_come_from_two_readings_of_one_process() -> None:
    text = "\n".join(
        f'epochal_publisher_{name}{{otel_scope_name="x",segment="0",stream="demo/a \\"b\\""}} {number}'
        for name, number in (("appends_total", "10.0"), ("records_total", "1e+02"), ("incarnation", "7.0"))
    )
    key = ('demo/a "b"', "0")
    before = readings(text + "\nepochal_publisher_stalls_total{} 1.0\n# HELP x\nnonsense{", 1.0)
    assert before == {key: Reading(1.0, 7.0, 10.0, 100.0)}
    assert rates(before, {key: Reading(3.0, 7.0, 14.0, 300.0)}) == {key: Rate(2.0, 100.0)}
    assert rates(before, {key: Reading(3.0, 8.0, 14.0, 300.0)}) == {}, "another incarnation"
    assert rates(before, {key: Reading(3.0, 7.0, 4.0, 30.0)}) == {}, "it began again"
    assert readings(text.replace("records", "others"), 1.0) == {}
    assert segment_samples("epochal_publisher_x{} 1.0") == {}


def test_a_stream_has_no_rate_unless_every_segment_has_one() -> None:
    assert total([Rate(1, 2), Rate(3, 4)]) == Rate(4, 6)
    assert total([Rate(1, 2), None]) is None
    assert total([]) is None


# ---- keys ----


def test_keys_come_out_whole_however_their_bytes_arrive() -> None:
    data = "aé\x1b[B\x1bOA\x1b[5~\x1b[1;5C\x01\r\x7fq".encode()
    expected = ["a", "é", Key.DOWN, Key.UP, Key.PAGE_UP, Key.ENTER, Key.BACKSPACE, "q"]
    assert KeyDecoder().feed(data) == expected
    decoder = KeyDecoder()
    assert [key for byte in data for key in decoder.feed(bytes([byte]))] == expected
    assert decoder.feed(b"\x1bq") == [Key.ESCAPE, "q"]
    assert decoder.feed(b"\x1b[") == []
    assert decoder.flush() == [], "the beginning of a key that never came"


def pressed(screen: Screen, *keys: str, names: tuple[str, ...] = ("a", "b", "c"), page: int = 2) -> Screen:
    for key in keys:
        screen = screen.press(key, names, page)
    return screen


def test_what_keys_do_in_a_list() -> None:
    assert [pressed(Screen(), key).order for key in "tnrlx"] == [*Order, Order.TROUBLE]
    assert pressed(Screen(), Key.DOWN).selected == "b"
    assert pressed(Screen(), Key.DOWN, Key.DOWN, Key.DOWN).selected == "c", "the last one"
    assert pressed(Screen(), Key.PAGE_DOWN, Key.UP).selected == "b"
    assert pressed(Screen(selected="gone"), Key.DOWN).selected == "b"
    assert pressed(Screen(), Key.DOWN, Key.ENTER, names=()) == Screen(), "there is none"
    assert pressed(Screen(), "q").mode is Mode.OVER


def test_what_keys_do_in_a_filter() -> None:
    screen = pressed(Screen(), "/", "q", "n", "x", Key.BACKSPACE)
    assert (screen.mode, screen.filter, screen.order) == (Mode.FILTER, "qn", Order.TROUBLE)
    assert pressed(screen, Key.UP) == screen
    assert (pressed(screen, Key.ENTER).mode, pressed(screen, Key.ENTER).filter) == (Mode.LIST, "qn")
    assert pressed(screen, Key.ESCAPE) == Screen()
    assert pressed(screen, Key.ENTER, Key.ESCAPE) == Screen()


def test_what_keys_do_in_a_stream() -> None:
    screen = pressed(Screen(), Key.DOWN, Key.ENTER)
    assert (screen.mode, screen.selected) == (Mode.STREAM, "b")
    assert pressed(screen, Key.UP, Key.DOWN, Key.PAGE_DOWN).scroll == 3
    assert pressed(screen, "n").order is Order.TROUBLE
    assert pressed(screen, Key.DOWN, Key.ESCAPE, Key.ENTER).scroll == 0
    assert pressed(screen, Key.ESCAPE).mode is Mode.LIST
    assert pressed(screen, "q", "t").mode is Mode.OVER


# ---- screens ----


def hostile() -> Snapshot:
    many = [stream(f"s{number:02}", held(writer="w\x1b[2J\u202e漢字" * 30), held()) for number in range(40)]
    reader = subscription("r\n\x07" * 40, [2], 10**9, of="s00")
    return snapshot(*many, readers=(reader,), s00=Rate(123456.0, 2e9))


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (12, 5), (1, 1)])
@pytest.mark.parametrize("mode", list(Mode)[:3])
def test_a_screen_has_exactly_its_size_and_steers_no_terminal(size: tuple[int, int], mode: Mode) -> None:
    width, height = size
    screen = Screen(mode=mode, selected="demo/s00", filter="s")
    lines = [line.plain for line in draw(screen, hostile(), Status("http://x", "no \x1b answer"), width, height)]
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines), lines
    assert all(line.isprintable() for line in lines), lines


def test_at_80_columns_every_column_but_the_trouble_is_there() -> None:
    look = snapshot(stream("a-long-name-of-a-stream", held(writer="a-long-name-of-a-writer", seconds=5000.0)),
                    readers=(subscription("r", [2], 10**9, of="a-long-name-of-a-stream"),))  # fmt: skip
    lines = [line.plain for line in draw(Screen(), look, Status("http://x"), 80, 24)]
    assert lines[2].split() == ["STREAM", "FRONTIER", "HELD", "BY", "FOR", "WR", "SUBS", "LAG", "APP/S", "REC/S"]
    assert re.fullmatch(r">demo/a-long-name.*… \{4\} +a-long-name.*…  ?1h23m +1 +0 at 2, 95.* - +- *", lines[3])
    wide = [line.plain for line in draw(Screen(), look, Status("http://x"), 160, 24)]
    assert "TROUBLE" in wide[2]


def test_the_selected_stream_stays_in_sight() -> None:
    for place in (0, 7, 39):
        lines = draw(Screen(Order.NAME, selected=f"demo/s{place:02}"), hostile(), Status("x"), 80, 12)
        assert [line.plain[:9] for line in lines if line.plain.startswith(">")] == [f">demo/s{place:02}"]


def test_a_stream_can_be_scrolled_to_its_end_and_may_be_gone() -> None:
    screen = Screen(mode=Mode.STREAM, selected="demo/s00")
    most = last_scroll(screen, hostile(), 80, 8)
    assert most > 0
    end = draw(Screen(mode=Mode.STREAM, selected="demo/s00", scroll=most + 9), hostile(), Status("x"), 80, 8)
    assert end[-2].plain.startswith("r\\n\\x07")
    assert draw(Screen(mode=Mode.STREAM, selected="x"), hostile(), Status("x"), 80, 8)[2].plain == (
        "x is gone; Esc goes back"
    )


# ---- a real terminal ----


class Terminal:
    """A pseudo-terminal of 80 columns and 24 lines on which `epochal top` runs."""

    def __init__(self, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, 80))
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        variables = {**os.environ, "TERM": "xterm-256color"}
        variables.pop("COLUMNS", None)
        command = [console_script("epochal"), "top", "--interval", "0.5", *arguments]
        self.process = subprocess.Popen(
            command, stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, env=variables, start_new_session=True
        )

    def press(self, keys: bytes) -> None:
        self.seen = b""
        os.write(self.ours, keys)

    def frame(self) -> list[str]:
        """The last whole screen, line by line."""
        whole = [part for part in self.seen.split(b"\x1b[H")[1:] if part.count(b"\n") == 23]
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", whole[-1].decode() if whole else "")
        return [line.rstrip() for line in text.replace("\r", "").split("\n")]

    def wait(self, pattern: str) -> str:
        """The first line of a screen that `pattern` is found in."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := [line for line in self.frame() if re.search(pattern, line)]:
                return found[0]
            self._read()
        raise AssertionError(f"{pattern} is not on the screen: {self.frame()} {self.seen[-500:]!r}")

    def end(self) -> int:
        """The exit status, once the terminal is as it was before."""
        reader = threading.Thread(target=self._drain)
        reader.start()
        status = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is as it was"
        os.close(self.theirs)
        reader.join(PATIENCE)
        assert self.seen.rstrip().endswith(LEAVE), self.seen[-200:]
        assert b"\x1b[?25h" in self.seen, "the cursor is back"
        return status

    def _read(self) -> None:
        if select.select([self.ours], [], [], 0.2)[0]:
            self.seen += os.read(self.ours, 65536)

    def _drain(self) -> None:
        try:
            while chunk := os.read(self.ours, 65536):
                self.seen += chunk
        except OSError:  # nobody holds the other end any more
            pass


@contextlib.contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    screen = Terminal(*arguments)
    try:
        yield screen
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.ours)


def test_the_screen_comes_answers_keys_and_goes(declared, run, catalog: str) -> None:
    stream, other = declared(segments=1), declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "--writer", "w1").status == 0
    with terminal(stream, other, "--catalog", catalog) as screen:
        title = screen.wait("^epochal top")
        assert "2 streams" in title
        assert ENTER in screen.seen
        during = termios.tcgetattr(screen.theirs)
        assert not during[3] & (termios.ICANON | termios.ECHO)
        assert during[3] & termios.ISIG, "Ctrl-C still interrupts"
        assert max(map(len, screen.frame())) <= 80
        screen.press(b"n")
        assert "by name" in screen.wait("^epochal top.*by name")
        screen.press(b"/" + stream[-2:].encode())
        assert "1 of 2 streams" in screen.wait("1 of 2 streams")
        screen.press(b"\r")
        screen.wait("drops the filter: " + stream[-2:])
        screen.press(b"\r")
        assert screen.wait(f"^{stream}").startswith(f"{stream}  Ready  frontier {{0}}")
        screen.wait("^Segments")
        screen.press(b"\x1b")
        screen.wait("^ STREAM +")
        screen.press(b"q")
        assert screen.end() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_terminal_as_it_was(declared, catalog: str, number: signal.Signals, status: int) -> None:
    stream = declared(segments=1)
    with terminal(stream, "--catalog", catalog) as screen:
        screen.wait("^epochal top")
        screen.process.send_signal(number)
        assert screen.end() == status


def test_a_failure_leaves_the_terminal_as_it_was() -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        with contextlib.suppress(ZeroDivisionError), single_keys(theirs):
            assert termios.tcgetattr(theirs) != before
            raise ZeroDivisionError
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


# ---- snapshots ----


def test_without_a_terminal_it_prints_one_table(run, declared) -> None:
    stream, other = declared(segments=2), declared(segments=1)
    assert run("pub", stream, "-t", "3", "1", "2", "--advance", "4", "--writer", "w1").status == 0
    result = run("top", stream, other, "--sort", "name")
    header, first, second = result.out.splitlines()
    assert (result.status, result.err) == (0, "")
    assert header.split() == ["STREAM", "TROUBLE", "FRONTIER", "HELD", "BY", "FOR", "WRITERS", "SUBS", "LAG", "APP/S",
                              "REC/S"]  # fmt: skip
    assert (first.split()[0], first.split()[-2:]) == (stream, ["0", "0"])
    assert second.split()[0] == other
    assert f"\n{stream} " in run("top", "-n", "demo", "--once").out


async def test_a_snapshot_for_scripts(run, services, catalog: str) -> None:
    stream = await services.stream(encoding="json")
    async with (
        library.connect(catalog) as client,
        client.writer(stream, writer_id="w1") as writer,
        client.subscribe(stream, subscriber="slowpoke") as subscription,
    ):
        await subscription.ready.wait()
        task = asyncio.create_task(asyncio.to_thread(run, "top", stream, "-o", "json"))
        at = 0
        while not task.done():
            at += 1
            await writer.append(at, [{"n": 1}, {"n": 2}])
            await writer.advance(at + 1)
            await asyncio.sleep(0.01)
        result = await task
    assert result.status == 0, result.err
    (item,) = json.loads(result.out)["streams"]
    assert (item["stream"], item["phase"], item["trouble"]) == (stream, "Ready", None)
    assert (item["writers"], item["subscriptions"]) == (1, 1)
    assert item["slowest"]["subscriber"] == "slowpoke"
    assert item["appends_per_second"] > 0
    assert item["records_per_second"] == pytest.approx(2 * item["appends_per_second"], rel=0.01)


def test_what_is_not_there_is_reported(run, unused_tcp_port: int) -> None:
    assert run("top", "demo/nothing-here").status == 3
    none = run("top", "-n", "nothing-here")
    assert (none.status, none.out) == (0, "")
    assert none.err == "no streams in namespace nothing-here; -A shows those of all namespaces\n"
    assert run("top", "--catalog", f"http://127.0.0.1:{unused_tcp_port}", "--timeout", "0").status == 4
    assert run("top", "--sort", "size").status == 2
