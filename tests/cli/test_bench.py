"""`bench`: what it computes, each part by itself; and what it measures and leaves behind, with real services."""

import asyncio
import doctest
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import termios
import time
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE

import epochal as library
from epochal.cli.bench import histogram as histogram_module
from epochal.cli.bench import measures, records, results, schedule
from epochal.cli.bench.histogram import BITS, MOST_BARS, Histogram
from epochal.cli.bench.results import BAR_WIDTH, LatencyResult, PubResult, SubResult, Traffic, show_duration
from epochal.cli.bench.schedule import SECOND, EpochSchedule, Schedule, next_time
from epochal.local.child import console_script
from epochal.protocol.times import TimeShape, less_than

DURATIONS = st.lists(st.integers(0, 2**63) | st.integers(0, 5_000), min_size=1)
SHAPES = ["int", "(int, int)", "((), (int, int))"]


def histogram(durations: list[int]) -> Histogram:
    found = Histogram()
    for nanoseconds in durations:
        found.add(nanoseconds)
    return found


# ---- the histogram ----


@given(DURATIONS, st.integers(1, 1000))
def test_a_percentile_is_never_below_the_true_one_and_at_most_one_part_in_128_above(
    durations: list[int], permille: int
) -> None:
    place = -(-len(durations) * permille // 1000)
    true = sorted(durations)[place - 1]
    found = histogram(durations).percentile(permille)
    assert found is not None
    assert true <= found <= true + (true >> BITS)
    assert found <= max(durations)


def test_short_durations_are_exact_and_the_longest_always_is() -> None:
    times = histogram(list(range(256)))
    assert [times.percentile(permille) for permille in (1, 500, 999)] == [0, 127, 255]
    assert histogram([3, 1_000_000_007]).percentile(1000) == 1_000_000_007
    assert histogram([-5]).percentile(500) == 0, "two clocks that differ"
    assert Histogram().percentile(500) is None


@given(DURATIONS)
def test_the_bars_hold_every_duration_once(durations: list[int]) -> None:
    bars = histogram(durations).bars()
    assert sum(bar.count for bar in bars) == len(durations)
    assert all(one.high == other.low for one, other in itertools.pairwise(bars))
    assert bars[0].count
    assert bars[-1].count
    for bar in bars:
        slack = bar.high >> BITS
        assert bar.count <= sum(bar.low - slack <= each <= bar.high for each in durations)


@given(st.lists(st.integers(0, 100 * SECOND), min_size=1))
def test_the_bars_fit_a_terminal(durations: list[int]) -> None:
    assert len(histogram(durations).bars()) <= MOST_BARS


# ---- the schedule ----


@given(st.integers(1, 1_000_000), st.integers(1, 10**9), st.integers(0, 10**13))
def test_a_record_is_due_from_its_moment_on(rate: int, total: int, elapsed: int) -> None:
    steady = Schedule(rate, total)
    due = steady.due(elapsed)
    assert 1 <= due <= total
    assert steady.at(due - 1) <= elapsed
    assert due == total or steady.at(due) > elapsed


@given(st.sampled_from(SHAPES), st.data())
def test_the_next_time_is_later_in_the_first_int_alone(shape: str, data: st.DataObject) -> None:
    parsed = TimeShape.parse(shape)
    low, high = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    at: Any = {"int": low, "(int, int)": (low, high)}.get(shape, ((), (low, high)))
    later = next_time(at)
    assert later is not None
    assert less_than(at, parsed.check(later))
    assert re.findall(r"\d+", str(later)) == [str(low + 1), *re.findall(r"\d+", str(at))[1:]]


def test_epochs_end_by_time_or_by_size_and_none_is_empty() -> None:
    epochs = EpochSchedule(5, 1.0, 100)
    assert epochs.advance(9 * SECOND) is None, "nothing is appended yet"
    epochs.add(60)
    assert (epochs.advance(SECOND - 1), epochs.advance(SECOND)) == (None, 6)
    epochs.add(60)
    assert epochs.advance(SECOND + 1) is None
    epochs.add(60)
    assert epochs.advance(SECOND + 2) == 7
    assert (epochs.time, epochs.epochs, epochs.end()) == (7, 2, 7)
    epochs.add(1)
    assert (epochs.epochs, epochs.end()) == (3, 8)


# ---- reports ----


def test_a_bar_of_one_can_be_seen_and_the_longest_is_full() -> None:
    result = PubResult(Traffic(1000, 10, 50_000_000, SECOND // 2), histogram([1_500] * 99_999 + [7_000_000]), epochs=3)
    (columns, (cells,)), (_, (shares,)), (_, bars) = result.tables()
    assert dict(zip(columns, cells, strict=True)) == {
        "SECONDS": "0.5", "RECORDS": "1,000", "RECORDS/S": "2,000", "BATCHES/S": "20", "MB/S": "100", "EPOCHS": "3",
    }  # fmt: skip
    assert shares[1:] == ["1.5 us", "1.5 us", "1.5 us", "1.5 us", "7 ms"]
    assert (len(bars[0][-1]), bars[1][-1], bars[-1][-1]) == (BAR_WIDTH, "", "#")
    assert (bars[0][:2], bars[-1][:2]) == (["1 us", "2 us"], ["5 ms", "10 ms"])


def test_the_first_batch_counts_for_no_rate_of_a_reader() -> None:
    result = SubResult(Traffic(30, 3, 3_000, 2 * SECOND), Traffic(10, 1, 1_000), epochs=4)
    found = result.to_json()
    assert (found["records"], found["batches"], found["payload_bytes"]) == (30, 3, 3_000)
    assert (found["records_per_second"], found["batches_per_second"]) == (10.0, 1.0)
    assert (found["payload_bytes_per_second"], found["epochs_per_second"], found["lag"]) == (1000.0, 2.0, None)
    (table,) = result.tables()
    assert table[1] == [["2.0", "30", "10", "1", "0.001", "4", "2"]]


def test_without_time_there_is_no_rate() -> None:
    assert SubResult(Traffic(5, 1, 5, 0), Traffic(5, 1, 5, 0)).to_json()["records_per_second"] is None
    assert LatencyResult(10).to_json()["latency"] is None


def test_late_is_what_is_sent_more_than_a_millisecond_after_its_moment() -> None:
    result = LatencyResult(1000)
    for lateness in (0, 1_000_000, 1_000_001, 7_000_000):
        result.add_sent(lateness)
    assert (result.sent, result.late, result.most_late) == (4, 2, 7_000_000)


def test_durations_have_three_digits() -> None:
    shown = [show_duration(nanoseconds) for nanoseconds in (99_949, 99_951, 999_499, 999_500, 59 * 60 * SECOND)]
    assert shown == ["99.9 us", "100 us", "999 us", "1 ms", "3540 s"]


@pytest.mark.parametrize("encoding", ["bytes", "msgpack", "json"])
def test_records_have_their_size_in_each_encoding(encoding: str) -> None:
    value = records.stamped(b"0123456789abcdef", 17, b"rest")
    assert (len(value), records.moment_of(value)) == (36, 17)
    (record,) = records.encodable(encoding, [value])
    assert (type(record), len(record)) == (str if encoding == "json" else bytes, 36)
    assert [len(records.filler(size)) for size in (1, 13, 14, 15, 1000)] == [1, 13, 14, 15, 1000]


@pytest.mark.parametrize("module", [histogram_module, records, results, schedule])
def test_the_examples_in_docstrings_are_right(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


# ---- pub ----


def epochs(run, stream: str, count: int) -> list[dict[str, Any]]:
    """The epochs of a stream, which is ended; so many are complete before, and no others are there."""
    read = ("sub", stream, "--since", "start", "--epochs", "--json")
    complete = run(*read, "--count", str(count), "--idle", str(PATIENCE)).out
    assert run("pub", stream, "--finish", "-q").status == 0
    assert run(*read).out == complete
    return [json.loads(line) for line in complete.splitlines()]


async def frontier_of(catalog: str, stream: str) -> tuple[Any, ...]:
    async with library.connect(catalog) as client, client.subscribe(stream) as subscription, asyncio.timeout(PATIENCE):
        await subscription.ready.wait()
        return subscription.frontier()


@pytest.mark.parametrize(
    ("encoding", "shape", "first", "after"),
    [
        ("bytes", "int", 1, 2),
        ("msgpack", "(int, int)", [1, 0], [2, 0]),
        ("json", "int", 1, 2),
        ("arrow", "int", 1, 2),
    ],
)
def test_pub_appends_as_many_records_as_it_says_in_complete_epochs(
    run, declared, encoding: str, shape: str, first: Any, after: Any
) -> None:
    if encoding == "arrow":
        pytest.importorskip("pyarrow")
    stream = declared(encoding, shape)
    result = run("bench", "pub", stream, "--count", "1000", "--batch", "64", "--size", "50", "-o", "json")
    assert (result.status, result.err) == (0, f"appends real records to {stream}, at times after its frontier\n")
    found = json.loads(result.out)
    assert (found["measure"], found["stream"], found["encoding"], found["way"]) == ("pub", stream, encoding, "direct")
    assert (found["records"], found["batches"], found["epochs"], found["interrupted"]) == (1000, 16, 1, False)
    assert 50_000 <= found["payload_bytes"] <= 75_000
    assert (found["first_time"], found["next_time"]) == (first, after)
    assert found["records_per_second"] == pytest.approx(1000 / found["seconds"], rel=0.01)
    times = found["acknowledgement"]
    assert 1 <= times["count"] <= 15
    assert 0 < times["p50_seconds"] <= times["p90_seconds"] <= times["p99_9_seconds"] <= times["max_seconds"]
    assert times["max_seconds"] <= found["seconds"]
    assert sum(bar["count"] for bar in times["histogram"]) == times["count"]
    (epoch,) = epochs(run, stream, 1)
    assert (epoch["time"], len(epoch["records"])) == (first, 1000)
    record = epoch["records"][0]
    assert len(record["record"] if encoding == "arrow" else record) == 50


def test_pub_leaves_no_writer_and_no_open_epoch(run, declared, catalog: str) -> None:
    stream = declared("bytes")
    assert run("pub", stream, "-t", "7", "mine").status == 0
    result = run("bench", "pub", stream, "--seconds", "1", "--epoch", "0.2", "--batch", "10", "-o", "json")
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert found["first_time"] == 1, "after the frontier, which is at 0"
    assert found["epochs"] >= 1
    assert found["next_time"] == found["epochs"] + 1
    assert found["seconds"] > 0.9
    assert asyncio.run(frontier_of(catalog, stream)) == (found["next_time"],)
    deadline = time.monotonic() + PATIENCE
    while json.loads(run("get", "stream", stream, "-o", "json").out)["writers"]:
        assert time.monotonic() < deadline, "the publisher reports to the catalog that the writer has left"


def test_pub_does_not_mix_its_records_with_an_epoch_that_is_open(run, declared) -> None:
    stream = declared("json", segments=1)
    assert run("pub", stream, "-t", "3", '"first"', "--advance", "3").status == 0
    found = json.loads(run("bench", "pub", stream, "--count", "10", "-o", "json").out)
    assert (found["first_time"], found["next_time"]) == (4, 5)
    first, second = epochs(run, stream, 2)
    assert (first["time"], first["records"]) == (3, ["first"])
    assert (second["time"], len(second["records"])) == (4, 10)


def test_an_epoch_of_pub_ends_before_it_is_too_large_for_a_reader(run, declared, monkeypatch) -> None:
    monkeypatch.setattr(measures, "EPOCH_BYTES", 100_000)
    stream = declared("bytes", segments=1)
    found = json.loads(run("bench", "pub", stream, "--count", "10000", "--epoch", "3600", "-o", "json").out)
    assert 2 <= found["epochs"] <= 13
    assert [len(epoch["records"]) for epoch in epochs(run, stream, found["epochs"])][-1] > 0


def test_ctrl_c_prints_what_was_measured_and_leaves_whole_epochs(run, declared, catalog: str) -> None:
    stream = declared("bytes", segments=1)
    options = ("--seconds", "600", "--batch", "1", "--size", "16", "-o", "json")
    command = [console_script("epochal"), "bench", "pub", stream, "--catalog", catalog, *options]
    follow = [console_script("epochal"), "sub", stream, "--since", "start", "--count", "1", "--catalog", catalog]
    with (
        subprocess.Popen(follow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader,
        subprocess.Popen(command, stdout=subprocess.PIPE) as bench,
    ):
        assert reader.wait(PATIENCE) == 0, "something came"
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate(timeout=PATIENCE)
    assert bench.returncode == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["records"] == found["batches"] > 0
    assert sum(len(epoch["records"]) for epoch in epochs(run, stream, found["epochs"])) == found["records"]


def test_streams_that_a_benchmark_cannot_publish_to_are_refused(run, declared, manifest) -> None:
    text = manifest("bench-schema", encoding="json", segments=1).replace(
        "encoding: json", "encoding: json, schema: {fields: [{name: delay, type: int32, nullable: false}]}"
    )
    assert run("apply", "-f", "-", stdin=text).status == 0
    once = declared("bytes", "()")
    for measure in ("pub", "latency"):
        result = run("bench", measure, "demo/bench-schema", "--count", "1")
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("error: demo/bench-schema declares payload.schema, and the records of a benchmark")
        assert "what to do: declare a stream for benchmarks, as `epochal bench --help` shows" in result.err
        result = run("bench", measure, once, "--count", "1")
        assert result.status == 2
        assert "knows one time only, (): its epoch could not end without the stream" in result.err
    assert run("pub", "demo/bench-schema", "-t", "1", '{"delay": 2}', '{"delay": 3}', "--finish").status == 0
    read = run("bench", "sub", "demo/bench-schema", "--since", "start", "-o", "json")
    assert (read.status, json.loads(read.out)["records"]) == (0, 2)
    assert run("delete", "stream", "demo/bench-schema").status == 0


def test_an_append_that_is_too_large_is_refused_before_anything_is_sent(run, declared, catalog: str) -> None:
    stream = declared("bytes", segments=1)
    for measure, size in (("pub", "100000"), ("latency", "20000000")):
        result = run("bench", measure, stream, "--size", size)
        assert (result.status, result.out) == (2, "")
        assert "at most 16,777,216 are allowed: lower --batch or --size" in result.err
    assert asyncio.run(frontier_of(catalog, stream)) == (0,)


def test_the_stream_of_the_help_can_be_measured(run) -> None:
    text = run("bench", "--help").out
    found = re.search(r"`epochal apply -f -`:\n((?:    .*\n)+)", text)
    assert found is not None
    assert run("apply", "-f", "-", stdin=found[1]).out == "stream demo/bench created\n"
    try:
        result = run("bench", "pub", "demo/bench", "--count", "300", "--batch", "100")
    finally:
        assert run("delete", "stream", "demo/bench").status == 0
    assert result.status == 0
    head, cells, blank, shares, _, _, bars, *_ = result.out.splitlines()
    assert head.split() == ["SECONDS", "RECORDS", "RECORDS/S", "BATCHES/S", "MB/S", "EPOCHS"]
    assert cells.split()[1] == "300"
    assert (blank, shares.split()) == ("", ["APPEND", "TO", "ACK", "P50", "P90", "P99", "P99.9", "MAX"])
    assert bars.split() == ["ABOVE", "TO", "COUNT", "SHARE"]


# ---- sub ----


def test_sub_counts_what_pub_appended(run, declared) -> None:
    stream = declared("msgpack")
    sent = json.loads(run("bench", "pub", stream, "--count", "3000", "--batch", "100", "--clock", "-o", "json").out)
    assert run("pub", stream, "--finish").status == 0
    result = run("bench", "sub", stream, "--since", "start", "--seconds", "600", "-o", "json")  # the stream ends before
    assert (result.status, result.err) == (0, "")
    found = json.loads(result.out)
    same = ("records", "batches", "payload_bytes", "epochs")
    assert [found[name] for name in same] == [sent[name] for name in same]
    assert (found["since"], found["aborted_epochs"], found["gaps"]) == ("start", 0, 0)
    assert found["records_per_second"] == pytest.approx(2900 / found["seconds"], rel=0.01)
    assert found["lag"]["count"] == 30
    assert found["lag"]["p50_seconds"] > 0
    shown = run("bench", "sub", stream, "--since", "start", "--count", "3000")
    assert shown.status == 0
    assert "\nLAG " in shown.out


def test_sub_counts_the_rows_of_arrow(run, declared) -> None:
    pytest.importorskip("pyarrow")
    stream = declared("arrow", segments=1)
    assert run("bench", "pub", stream, "--count", "500", "--batch", "200").status == 0
    found = json.loads(run("bench", "sub", stream, "--since", "start", "--count", "500", "-o", "json").out)
    assert (found["records"], found["batches"]) == (500, 3)


def test_sub_ends_with_the_stream(run, declared) -> None:
    stream = declared("json", segments=1)
    assert run("pub", stream, "-t", "1", "1", "2", "3").status == 0
    assert run("pub", stream, "-t", "2", "4", "--finish").status == 0
    found = json.loads(run("bench", "sub", stream, "--since", "start", "--seconds", "600", "-o", "json").out)
    assert (found["records"], found["epochs"]) == (4, 2)


def test_sub_says_when_nothing_came(run, declared) -> None:
    stream = declared("json", segments=1)
    result = run("bench", "sub", stream, "--seconds", "0.2")
    assert result.status == 4
    assert result.err.startswith(f"nothing came; publish meanwhile, or read what {stream} retains")
    assert result.out.splitlines()[1].split() == ["0.0", "0", "-", "-", "-", "0", "-"]


# ---- latency ----


@pytest.fixture
def every_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late a busy machine is at the end of the schedule."""
    monkeypatch.setattr(measures, "LATE_END", int(PATIENCE * SECOND))


@pytest.mark.usefixtures("every_record_is_sent")
@pytest.mark.parametrize(("encoding", "shape"), [("bytes", "(int, int)"), ("json", "int"), ("arrow", "int")])
def test_latency_gets_back_every_record_that_it_sent(run, declared, catalog: str, encoding: str, shape: str) -> None:
    if encoding == "arrow":
        pytest.importorskip("pyarrow")
    stream = declared(encoding, shape)
    result = run("bench", "latency", stream, "--seconds", "0.5", "--rate", "400", "--epoch", "0.2", "-o", "json")
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert (found["expected_records"], found["sent_records"], found["received_records"]) == (200, 200, 200)
    times = found["latency"]
    assert times["count"] == 200
    assert 0 < times["p50_seconds"] <= times["p90_seconds"] <= times["p99_seconds"] <= times["max_seconds"]
    assert found["most_late_seconds"] <= times["max_seconds"]
    shown = run("sub", stream, "--since", "start", "--epochs", "--json", "--idle", "3").out
    complete = [json.loads(line) for line in shown.splitlines()]
    assert sum(len(epoch["records"]) for epoch in complete) == 200
    assert 2 <= len(complete) <= 4 or found["most_late_seconds"] > 0.1
    assert complete[0]["time"] == found["first_time"]


@pytest.mark.usefixtures("every_record_is_sent")
def test_a_pause_of_the_sender_counts_for_the_records_that_it_held_up(run, declared, monkeypatch) -> None:
    """Without a schedule a pause of half a second would be one slow record; a hundred were due in it."""
    stream, calls = declared("bytes", segments=1), iter(range(1000))

    def slow(encoding: str, values: Any) -> Any:
        if next(calls) == 50:
            time.sleep(0.5)
        return records.encodable(encoding, values)

    monkeypatch.setattr(measures, "encodable", slow)
    found = json.loads(run("bench", "latency", stream, "--seconds", "1", "--rate", "200", "-o", "json").out)
    slow_ones = sum(bar["count"] for bar in found["latency"]["histogram"] if bar["above_seconds"] >= 0.1)
    assert slow_ones >= 75, found["latency"]
    assert found["late_records"] >= 95
    assert found["most_late_seconds"] >= 0.45


@pytest.mark.usefixtures("every_record_is_sent")
async def test_latency_counts_its_own_records_alone(run, services, catalog: str) -> None:
    stream = await services.stream(encoding="json")
    command = ("bench", "latency", stream, "--seconds", "1", "--rate", "100", "-o", "json")
    async with library.connect(catalog) as client, client.writer(stream, writer_id="w1") as writer:
        task = asyncio.create_task(asyncio.to_thread(run, *command))
        at = 0
        while not task.done():
            await writer.append(at, ["x" * 200])
            await writer.advance(at + 1)
            at += 1
            await asyncio.sleep(0.01)
        found = json.loads((await task).out)
    assert at > 1
    assert found["received_records"] == found["sent_records"] == 100


def test_a_rate_that_cannot_be_kept_is_reported(run, declared, monkeypatch) -> None:
    def slow(encoding: str, values: Any) -> Any:
        time.sleep(0.02)
        return records.encodable(encoding, values)

    monkeypatch.setattr(measures, "encodable", slow)
    stream = declared("bytes", segments=1)
    result = run("bench", "latency", stream, "--seconds", "0.5", "--rate", "1000", "-o", "json")
    found = json.loads(result.out)
    assert found["expected_records"] == 500
    assert found["received_records"] == found["sent_records"] < 500
    assert re.search(r"^\d+ records could not be sent in time; try a lower --rate$", result.err, re.MULTILINE)
    assert result.status == 0


# ---- all three ----


def test_wrong_options_are_refused(run) -> None:
    for words, said in (
        (("pub", "demo/x", "--rate", "5"), "--rate is of `bench latency`, not of pub"),
        (("sub", "demo/x", "--size", "5"), "--size is of `bench pub` and `bench latency`, not of sub"),
        (("latency", "demo/x", "--clock"), "--clock is of `bench pub`, not of latency"),
        (("latency", "demo/x", "--size", "31"), "has at least 32 bytes"),
        (("pub", "demo/x", "--since", "start"), "--since is of `bench sub`, not of pub"),
        (("sub", "demo/x", "--since", "time:x"), "time:"),
        (("speed", "demo/x"), "speed"),
    ):
        result = run("bench", *words)
        assert (result.status, result.out) == (2, ""), words
        assert said in result.err


@pytest.mark.parametrize("measure", ["pub", "sub", "latency"])
def test_what_is_not_there_is_said(run, declared, unused_tcp_port: int, measure: str) -> None:
    stream = declared("bytes", segments=1)
    missing = run("bench", measure, stream[:-1] + "9")
    assert missing.status == 3
    assert stream in missing.err, "a name that nearly is one"
    away = run("bench", measure, stream, "--catalog", f"http://127.0.0.1:{unused_tcp_port}", "--timeout", "0")
    assert (away.status, away.out) == (4, "")
    assert run("pub", stream, "--finish").status == 0
    complete = run("bench", measure, stream, "--seconds", "0.2")
    assert complete.status == (4 if measure == "sub" else 1), complete.err


def at_a_terminal(*arguments: str) -> tuple[int, str]:
    """Exit status, and what a terminal of 80 columns and 24 lines is sent."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    variables = {**os.environ, "TERM": "xterm-256color"}
    variables.pop("COLUMNS", None)
    command = [console_script("epochal"), "bench", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables) as running:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # no process holds the other end any more
            pass
        finally:
            os.close(ours)
    return running.returncode, seen.decode().replace("\r\n", "\n")


def test_a_terminal_shows_progress_and_then_a_report_that_fits(declared, catalog: str) -> None:
    stream = declared("bytes", segments=1)
    status, seen = at_a_terminal("latency", stream, "--seconds", "2.5", "--rate", "100", "--catalog", catalog)
    assert status == 0
    lines = re.findall(r"\r\x1b\[K(\d+ s: [\d,]+ of [\d,]+ received, p50 [\d.]+ \w+, p99 [\d.]+ \w+)", seen)
    assert lines, "one a second, and fewer where the machine is busy"
    report = re.sub(r"\x1b\[[0-9;]*m", "", seen.rpartition("\r\x1b[K")[2]).splitlines()
    assert report[0].split() == ["SECONDS", "RATE/S", "EXPECTED", "SENT", "RECEIVED", "SENT", "LATE", "MOST", "LATE"]
    assert len(report) < 24
    assert max(map(len, report)) <= 80
    assert any(line.endswith("#" * BAR_WIDTH) for line in report)


def test_elsewhere_there_is_no_progress(declared, catalog: str) -> None:
    stream = declared("bytes", segments=1)
    command = [console_script("epochal"), "bench", "pub", stream, "--seconds", "1.5", "--catalog", catalog]
    result = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    assert result.stderr.decode() == f"appends real records to {stream}, at times after its frontier\n"
    assert b"\x1b" not in result.stdout
